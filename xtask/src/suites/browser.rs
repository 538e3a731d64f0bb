// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Opens a flame graph in Debian's Chromium, and takes screenshots of it. Checks what it shows, and
//! the effects of a click and of a search.

use std::fs;
use std::iter::zip;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::readme;
use super::screenshot::{self, Screenshot};
use crate::artefacts::viewers::{self, Viewers};
use crate::tools::cache;

/// The window's width, which is that of the picture. Unit: pixels.
const WIDTH: u32 = 1200;
/// The sum of the picture's left and right margins, in which there are no boxes. Unit: pixels.
const MARGIN: f64 = 20.0;
/// How far a box's width may be from its share of the picture's width. Unit: pixels.
const BAND: f64 = 0.1;
/// A box of at least this width has to show a name of usual length. Unit: pixels.
const WIDE: f64 = 400.0;
/// The narrowest box whose colour is certainly in the screenshot. Unit: pixels.
const COLOURED: f64 = 3.0;
/// The place in a box whose colour is compared: its distances from the box's right edge and from
/// its upper edge. The box's label ends before it. Unit: pixels.
const FILLED: [f64; 2] = [1.5, 7.0];
/// The colour of search results, as the picture's own script sets it.
const FOUND: &str = "rgb(230, 0, 230)";

/// A script that prints each box's title, label, place and colour, and the width of the first
/// narrow box after a click. The picture's own script has changed label and width by then.
const MEASURE: &str = "
<script type=\"text/ecmascript\"><![CDATA[
setTimeout(function() {
    var boxes = Array.from(document.getElementById('frames').children);
    var place = function(box) { return box.querySelector('rect').getBoundingClientRect(); };
    var lines = boxes.map(function(box) {
        var at = place(box);
        return [box.querySelector('title').textContent, box.querySelector('text').textContent,
            at.x, at.y, at.width, getComputedStyle(box.querySelector('rect')).fill].join('\\t');
    });
    lines.push(document.getElementById('matched').textContent);
    var all = Math.max.apply(null, boxes.map(function(box) { return place(box).width; }));
    var narrow = boxes.find(function(box) { return place(box).width < all / 2; });
    narrow.querySelector('rect').dispatchEvent(new MouseEvent('click', {bubbles: true}));
    lines.push(place(narrow).width);
    var said = document.createElementNS('http://www.w3.org/2000/svg', 'metadata');
    said.textContent = lines.join('\\n');
    document.documentElement.appendChild(said);
}, 500);
]]></script></svg>";

/// A box as the browser has drawn it.
pub struct Box {
    /// The function, or what else it stands for.
    pub name: String,
    /// Its samples, those of the boxes above it included.
    pub samples: u64,
    label: String,
    /// The place of its left upper corner in the window, and its width. Unit: pixels.
    left: f64,
    top: f64,
    width: f64,
    /// Its colour, in the browser's words.
    colour: String,
}

impl Box {
    /// Returns the box among these on which this one is drawn, unless it is the lowest one.
    fn below<'a>(&self, boxes: &'a [Self]) -> Option<&'a Self> {
        let middle = self.left + self.width / 2.0;
        let is_below = |other: &&Self| {
            other.top > self.top && (other.left..=other.left + other.width).contains(&middle)
        };
        boxes.iter().filter(is_below).min_by(|one, other| one.top.total_cmp(&other.top))
    }

    /// Returns the names from the lowest box up to this one.
    pub fn path<'a>(&'a self, boxes: &'a [Self]) -> Vec<&'a str> {
        let mut path = self.below(boxes).map_or_else(Vec::new, |below| below.path(boxes));
        path.push(&self.name);
        path
    }

    /// Returns its colour.
    pub fn rgb(&self) -> Result<[u8; 3]> {
        rgb(&self.colour)
    }
}

/// The browser's drawing of a picture.
pub struct Opened {
    /// All boxes.
    pub boxes: Vec<Box>,
    /// The text of the picture about the search results.
    matched: String,
    /// The width of the clicked box after the click. Unit: pixels.
    clicked: f64,
    /// The screenshot's file.
    pub screenshot: PathBuf,
}

/// Opens a picture, and fails unless every box is as wide as its share of the samples, each wide
/// box shows its function's name, and the screenshot has each box's colour where that box is.
///
/// The screenshots are called `name`, in the project's target directory.
pub fn opens(picture: &Path, name: &str) -> Result<Opened> {
    let text = fs::read_to_string(picture).with_context(|| picture.display().to_string())?;
    let opened = open(&text, "", name)?;
    let expected = readme::boxes(&text)?;
    let most = expected.iter().map(|(_, samples)| *samples).max().unwrap_or(0);
    let mut drawn: Vec<&Box> = opened.boxes.iter().collect();
    drawn.sort_by(|one, other| (&one.name, one.samples).cmp(&(&other.name, other.samples)));
    let names: Vec<_> = drawn.iter().map(|one| (one.name.clone(), one.samples)).collect();
    ensure!(names == expected, "drawn:    {names:?}\nexpected: {expected:?}");
    let whole = f64::from(WIDTH) - MARGIN;
    for (Box { name, label, width, .. }, (_, samples)) in zip(drawn, &expected) {
        let share = whole * *samples as f64 / most as f64;
        ensure!((width - share).abs() < BAND, "{name}: {width} pixels found, {share} expected");
        // The picture shows the end of a long name only.
        let named = match label.strip_prefix("..") {
            Some(end) => name.ends_with(end),
            None => label == name,
        };
        ensure!(*width < WIDE || named || name == "all", "{name}: labelled `{label}`");
    }
    let clicked = opened.clicked;
    ensure!((clicked - whole).abs() < BAND, "{clicked} pixels after a click, {whole} expected");
    is_seen(&opened)?;
    Ok(opened)
}

/// Searches for this function in a picture, and fails unless exactly its boxes are highlighted, and
/// the picture says which share of all samples they have. No box of the function is above another.
///
/// Returns the screenshot.
pub fn finds(picture: &Path, function: &str, name: &str) -> Result<PathBuf> {
    let text = fs::read_to_string(picture).with_context(|| picture.display().to_string())?;
    // The picture's own search covers whole titles, in which the samples follow the name.
    let found = open(&text, &format!("?s=^{function}%20"), name)?;
    let mut samples = 0;
    for one in &found.boxes {
        let (is_wanted, is_found) = (one.name == function, one.colour == FOUND);
        ensure!(is_wanted == is_found, "{}: {} where {function} is sought", one.name, one.colour);
        samples += if is_wanted { one.samples } else { 0 };
    }
    let all = found.boxes.iter().map(|one| one.samples).max().unwrap_or(0);
    ensure!(samples > 0, "there is no box of {function}");
    let expected = format!("Matched: {:.1}%", 100.0 * samples as f64 / all as f64);
    ensure!(found.matched == expected, "{:?} found, {expected:?} expected", found.matched);
    is_seen(&found)?;
    Ok(found.screenshot)
}

/// Fails unless the screenshot has each box's colour where that box is.
fn is_seen(opened: &Opened) -> Result<()> {
    let seen = Screenshot::read(&opened.screenshot)?;
    for one in opened.boxes.iter().filter(|one| one.width >= COLOURED) {
        let at = [one.left + one.width - FILLED[0], one.top + FILLED[1]];
        let (found, expected) = (seen.pixel(at)?, one.rgb()?);
        ensure!(
            found == expected,
            "{} at {at:?}: {found:?} found, {expected:?} expected in {}",
            one.name,
            opened.screenshot.display()
        );
    }
    Ok(())
}

/// Opens a picture with this query behind its address.
fn open(picture: &str, query: &str, name: &str) -> Result<Opened> {
    let (before, _) = picture.rsplit_once("</svg>").context("a picture that does not end")?;
    let viewers = viewers::viewers()?;
    let window = [WIDTH, height(picture)?];
    let address = put_page(&viewers, "page.svg", picture)? + query;
    let screenshot = screenshot::path(name)?;
    browse(&viewers, window, &format!("--screenshot=/tmp/shot.png '{address}'"))?;
    viewers.system.get("/tmp/shot.png", &screenshot)?;
    let address = put_page(&viewers, "page.svg", &format!("{before}{MEASURE}"))? + query;
    let dom = browse(&viewers, window, &format!("--dump-dom '{address}'"))?;
    ensure!(!dom.contains("<parsererror"), "the browser finds an error in it\n{dom}");
    let printed = dom.split("<metadata>").nth(1).and_then(|rest| rest.split("</metadata>").next());
    let printed = printed.with_context(|| format!("the browser's script said nothing\n{dom}"))?;
    let printed = printed.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let lines: Vec<&str> = printed.lines().collect();
    let [boxes @ .., matched, clicked] = &*lines else { bail!("it has said {printed:?}") };
    Ok(Opened {
        boxes: boxes.iter().map(|line| parse(line)).collect::<Result<Vec<_>>>()?,
        matched: (*matched).to_owned(),
        clicked: clicked.parse()?,
        screenshot,
    })
}

/// Reads a line of the script.
fn parse(line: &str) -> Result<Box> {
    let [title, label, left, top, width, colour] = line.split('\t').collect::<Vec<_>>()[..] else {
        bail!("a line of other words: {line}");
    };
    let (name, samples) = readme::title(title)?.context("a box without a title")?;
    Ok(Box {
        name,
        samples,
        label: readme::without_thread(label).trim_end().to_owned(),
        left: left.parse()?,
        top: top.parse()?,
        width: width.parse()?,
        colour: colour.to_owned(),
    })
}

/// Reads a colour such as `rgb(230, 0, 230)`.
fn rgb(text: &str) -> Result<[u8; 3]> {
    let numbers = text.strip_prefix("rgb(").and_then(|rest| rest.strip_suffix(')'));
    let numbers = numbers.with_context(|| format!("{text:?} is no colour"))?;
    let numbers = numbers.split(", ").map(str::parse).collect::<Result<Vec<u8>, _>>()?;
    numbers.try_into().map_err(|other| anyhow::anyhow!("{other:?} found, three numbers expected"))
}

/// Returns the picture's height. Unit: pixels.
fn height(picture: &str) -> Result<u32> {
    let number = picture.split("height=\"").nth(1).and_then(|rest| rest.split('"').next());
    Ok(number.context("a picture without a height")?.parse()?)
}

/// Puts a page where the browser finds it. Returns its address.
fn put_page(viewers: &Viewers, name: &str, text: &str) -> Result<String> {
    let page = cache::scratch(name)?;
    fs::write(&page, text)?;
    viewers.system.put(&[&page], "page")?;
    Ok(format!("file:///page/{name}"))
}

/// Runs the browser without a screen. Returns what it writes to its standard output.
fn browse(viewers: &Viewers, [width, height]: [u32; 2], what: &str) -> Result<String> {
    viewers.system.run(&format!(
        "HOME=/tmp timeout 300 chromium --headless --no-sandbox --disable-gpu \
         --disable-dev-shm-usage --hide-scrollbars --window-size={width},{height} \
         --virtual-time-budget=5000 {what} > /tmp/said 2> /tmp/err || {{ cat /tmp/err; exit 1; }}"
    ))?;
    let printed = cache::scratch("browser-said")?;
    viewers.system.get("/tmp/said", &printed)?;
    Ok(fs::read_to_string(printed)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_script_is_a_box() {
        let read = parse("7 a<b> (1,402 samples, 100%)\ta<b..\t10\t20.5\t300\trgb(1, 2, 3)");
        let read = read.unwrap();
        assert_eq!((&*read.name, read.samples, read.left, read.top), ("a<b>", 1402, 10.0, 20.5));
        assert_eq!(read.rgb().unwrap(), [1, 2, 3]);
        assert!(parse("a (1 samples, 1%)\ta\t1\t2\t3").is_err());
        for other in ["red", "rgb(1, 2)", "rgb(1, 2, 256)"] {
            assert!(rgb(other).is_err(), "{other}");
        }
    }

    #[test]
    fn a_box_is_upon_the_nearest_one_below_it() {
        let one = |name: &str, left, top, width| Box {
            name: name.to_owned(),
            samples: 1,
            label: String::new(),
            left,
            top,
            width,
            colour: String::new(),
        };
        let boxes = [
            one("all", 0.0, 48.0, 100.0),
            one("left", 0.0, 32.0, 40.0),
            one("right", 40.0, 32.0, 60.0),
            one("top", 50.0, 16.0, 5.0),
        ];
        assert_eq!(boxes[3].path(&boxes), ["all", "right", "top"]);
        assert_eq!(boxes[1].path(&boxes), ["all", "left"]);
    }
}
