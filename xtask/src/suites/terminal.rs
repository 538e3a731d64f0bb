// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Shows the output of a command in two terminals, Debian's tmux and xterm. tmux reports the text
//! of each line, and a screenshot shows xterm's window.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::screenshot::{self, Screenshot};
use crate::artefacts::viewers;
use crate::tools::cache;

/// The terminal's columns and lines. `tests/vm/src/bin/pictures/pty.rs` has the same.
const SIZE: [u32; 2] = [110, 30];
/// The output by which a command returns the whole screen to the shell. The screen before that is
/// the picture.
const LEAVES: &[u8] = b"\x1b[?1049l";

/// A script that shows the file of bytes in both terminals, and takes the screenshot when nothing
/// changes any more. The screen is exactly as large as xterm's window. Everything that the script
/// has started ends with it.
const SHOW: &str = "
mount -t devpts -o ptmxmode=0666 devpts /dev/pts
ln -sf pts/ptmx /dev/ptmx
export HOME=/tmp DISPLAY=:7 TERM=xterm-256color SHELL=/bin/sh
Xvfb $DISPLAY -screen 0 880x450x24 > /tmp/xvfb 2>&1 &
tmux -f /dev/null new-session -d -s shown -x $COLUMNS -y $LINES 'cat /page/bytes; sleep 300'
tmux set -g status off
for attempt in $(seq 100); do test -e /tmp/.X11-unix/X7 && break; sleep 0.2; done
xterm -geometry ${COLUMNS}x$LINES+0+0 -bw 0 -b 0 -fa 'DejaVu Sans Mono' -fs 9 \
  -e sh -c 'printf \"\\033[?25l\"; cat /page/bytes; sleep 300' > /tmp/xterm 2>&1 &
before=; for attempt in $(seq 60); do
  sleep 1; scrot -o /tmp/shot.png; now=$(md5sum < /tmp/shot.png)
  if test \"$now\" = \"$before\" && test $attempt -gt 3; then break; fi; before=$now
done
tmux capture-pane -p -t shown > /tmp/lines
";

/// What was shown.
pub struct Shown {
    /// The text of each line.
    pub lines: Vec<String>,
    /// The screenshot's file.
    pub screenshot: PathBuf,
}

/// Shows the last screen in the output of a command. The screenshot is called `name`, in the
/// project's target directory.
///
/// # Errors
///
/// The command has never left the whole screen, or xterm's window stays empty.
pub fn show(written: &Path, name: &str) -> Result<Shown> {
    let bytes = fs::read(written).with_context(|| written.display().to_string())?;
    let end = bytes.windows(LEAVES.len()).rposition(|part| part == LEAVES);
    let end = end.with_context(|| format!("{} has no screen that ends", written.display()))?;
    let page = cache::scratch("bytes")?;
    fs::write(&page, &bytes[..end])?;
    let viewers = viewers::viewers()?;
    let [columns, lines] = SIZE;
    viewers.system.put(&[&page], "page")?;
    viewers.system.run(&format!("COLUMNS={columns} LINES={lines}\n{SHOW}"))?;
    let (text, screenshot) = (cache::scratch("terminal-lines")?, screenshot::path(name)?);
    viewers.system.get("/tmp/lines", &text)?;
    viewers.system.get("/tmp/shot.png", &screenshot)?;
    let drawn = Screenshot::read(&screenshot)?.drawn();
    ensure!(drawn > 1_000, "{}: {drawn} pixels are drawn", screenshot.display());
    let lines = fs::read_to_string(text)?.lines().map(str::to_owned).collect();
    Ok(Shown { lines, screenshot })
}
