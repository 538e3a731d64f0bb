// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Opens a flame graph in Debian's Chromium, and checks what it draws and what a click does.

use std::fs;
use std::iter::zip;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::readme;
use crate::artefacts::browser;
use crate::tools::cache;
use crate::tools::chroot::Chroot;

/// The window's width and height.  Unit: pixels.
const WINDOW: [u32; 2] = [1200, 800];
/// The width that is left free at both sides of the picture together. Unit: pixels.
const MARGIN: f64 = 20.0;
/// How far a box's width may be from its share of the picture's width. Unit: pixels.
const BAND: f64 = 0.1;
/// A box of at least this width has to show a name of usual length. Unit: pixels.
const WIDE: f64 = 400.0;

/// A script that prints each box's title, label and width in pixels, and the width of the first
/// narrow box after a click. The picture's own script has changed label and width by then.
const MEASURE: &str = "
<script type=\"text/ecmascript\"><![CDATA[
setTimeout(function() {
    var boxes = Array.from(document.getElementById('frames').children);
    var width = function(box) { return box.querySelector('rect').getBoundingClientRect().width; };
    var lines = boxes.map(function(box) {
        return [box.querySelector('title').textContent, box.querySelector('text').textContent,
            width(box)].join('\\t');
    });
    var all = Math.max.apply(null, boxes.map(width));
    var narrow = boxes.find(function(box) { return width(box) < all / 2; });
    narrow.querySelector('rect').dispatchEvent(new MouseEvent('click', {bubbles: true}));
    lines.push(['', '', width(narrow)].join('\\t'));
    var said = document.createElementNS('http://www.w3.org/2000/svg', 'metadata');
    said.textContent = lines.join('\\n');
    document.documentElement.appendChild(said);
}, 500);
]]></script></svg>";

/// Fails unless every box is as wide as its share of the samples, and each wide box shows its
/// function's name.
pub fn opens(picture: &Path) -> Result<()> {
    let picture = fs::read_to_string(picture)?;
    let expected = readme::boxes(&picture)?;
    let most = expected.iter().map(|(_, samples)| *samples).max().unwrap_or(0);
    let (mut drawn, clicked) = drawn(&picture)?;
    drawn.sort_by(|one, other| (&one.name, one.samples).cmp(&(&other.name, other.samples)));
    let names: Vec<_> = drawn.iter().map(|one| (one.name.clone(), one.samples)).collect();
    ensure!(names == expected, "drawn:    {names:?}\nexpected: {expected:?}");
    let whole = f64::from(WINDOW[0]) - MARGIN;
    for (Box { name, label, width, .. }, (_, samples)) in zip(&drawn, &expected) {
        let share = whole * *samples as f64 / most as f64;
        ensure!((width - share).abs() < BAND, "{name}: {width} pixels found, {share} expected");
        // The picture shows the end of a long name only.
        let named = match label.strip_prefix("..") {
            Some(end) => name.ends_with(end),
            None => label == name,
        };
        ensure!(*width < WIDE || named || name == "all", "{name}: labelled `{label}`");
    }
    ensure!((clicked - whole).abs() < BAND, "{clicked} pixels after a click, {whole} expected");
    Ok(())
}

/// A box as the browser has drawn it.
struct Box {
    name: String,
    samples: u64,
    label: String,
    width: f64,
}

/// Returns all boxes, and the width of the clicked one after the click.
fn drawn(picture: &str) -> Result<(Vec<Box>, f64)> {
    let (before, _) = picture.rsplit_once("</svg>").context("a picture that does not end")?;
    let dom = dom(&format!("{before}{MEASURE}"))?;
    let said = dom.split("<metadata>").nth(1).and_then(|rest| rest.split("</metadata>").next());
    let said = said.with_context(|| format!("the browser's script said nothing\n{dom}"))?;
    let mut boxes = Vec::new();
    let mut clicked = None;
    for line in said.lines() {
        let [title, label, width] = line.split('\t').collect::<Vec<_>>()[..] else {
            anyhow::bail!("a line of other words: {line}");
        };
        let (width, label) = (width.parse()?, readme::without_thread(label).trim_end().to_owned());
        match readme::title(title)? {
            Some((name, samples)) => boxes.push(Box { name, samples, label, width }),
            None => clicked = Some(width),
        }
    }
    Ok((boxes, clicked.context("nothing was clicked")?))
}

/// Returns the document that the browser makes of a picture.
fn dom(picture: &str) -> Result<String> {
    let work = cache::root()?.join("work/browser");
    let _lock = cache::lock("browser-root")?;
    let page = cache::root()?.join("work/page.svg");
    fs::write(&page, picture)?;
    let debian = Chroot::unpack(&browser::system()?, &work)?;
    debian.put(&[&page], "page")?;
    let [width, height] = WINDOW;
    debian.run(&format!(
        "HOME=/tmp timeout 300 chromium --headless --no-sandbox --disable-gpu \
         --disable-dev-shm-usage --hide-scrollbars --window-size={width},{height} \
         --virtual-time-budget=5000 --dump-dom file:///page/page.svg > /tmp/dom 2> /tmp/err \
         || {{ cat /tmp/err; exit 1; }}"
    ))?;
    let dom = fs::read_to_string(debian.path("/tmp/dom"))?;
    debian.remove()?;
    Ok(dom)
}
