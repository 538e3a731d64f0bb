// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Opens each picture that users see in a browser or a terminal, as they do, and takes screenshots.
//!
//! One machine makes the pictures. Web servers are under load in a PV guest and in a PVH tenant
//! while the host is sampled, and a program samples itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::artefacts::guest;
use crate::machine::Spec;
use crate::suites::browser::{self, Opened};
use crate::suites::report::Report;
use crate::suites::{readme, tenants, terminal};
use crate::tools::cache;
use crate::tools::sh;

/// The guests, as the host's flame graph calls their virtual CPUs: the control domain, and the
/// tenant.
const GUESTS: [&str; 2] = ["Domain-0", "web"];
/// The layers, each with the colour that has to be the strongest one in its boxes: as red, green
/// and blue, from the strongest to the weakest.
const LAYERS: [(&str, [usize; 3]); 3] =
    [("hypervisor", [0, 1, 2]), ("kernel", [2, 1, 0]), ("user", [1, 0, 2])];

/// Boots one machine.
pub fn run(report: &mut Report) -> Result<()> {
    flame_graph(report, &sh::project().join(readme::PICTURE), "readme");
    let out = cache::scratch("pictures-out")?;
    report.program(spec(&out)?, "pictures")?;
    flame_graph(report, &out.join("primes.svg"), "primes");
    report.test("Chromium draws each layer of each guest in its colour", || {
        let samples = layers(&browser::opens(&out.join("host.svg"), "host")?)?;
        println!("{}", table(&samples));
        Ok(())
    });
    for (name, expected) in SCREENS {
        report.test(&format!("terminals show what {name} has written"), || {
            shows(&out.join(name), name, expected).map(drop)
        });
    }
    report.note(format!("screenshots: {}", sh::project().join("target/pictures").display()));
    Ok(())
}

/// Opens a program's flame graph, and searches in it.
fn flame_graph(report: &mut Report, picture: &Path, name: &str) {
    report.test(&format!("Chromium draws the flame graph {name}"), || {
        browser::opens(picture, name).map(drop)
    });
    report.test(&format!("a search finds a function in the flame graph {name}"), || {
        browser::finds(picture, "strike", &format!("{name}-search")).map(drop)
    });
}

/// The files with what the views of `perfctr top` have written to a terminal. For each file there
/// are texts, each of which must be in some line of the view.
const SCREENS: [(&str, &[&str]); 2] = [
    ("top", &["thread", "gzip", "yes", "q ends, t shows threads"]),
    ("top-host", &["samples", "hypervisor", "kernel", "user", "Domain-0", "q ends"]),
];

/// Describes the machine, which leaves its pictures in this directory.
pub fn spec(out: &Path) -> Result<Spec> {
    let spec = Spec::new("pv-amd", ["/work/pictures"])?.driver("profile,accounts")?;
    // So the host is sampled in time, however busy this machine is.
    let mut spec = spec.deterministic();
    // Such a processor has six counters, of which three are the host's.
    spec.topology.cpu.push_str(",+perfctr-core");
    spec.timeout = Duration::from_secs(1500);
    spec.keep_out(out)?;
    spec.add_program("vm-tests", "pictures")?;
    spec.add_program("perfctr", "perfctr")?;
    spec.files.push((guest::beside_stat("primes.c", &readme::FLAGS)?, "/work/primes".into()));
    let further = tenants::add_network(&mut spec)?;
    tenants::add_tenant(&mut spec, "pictures", &further)?;
    Ok(spec)
}

/// The samples of each guest and layer.
type Samples = BTreeMap<(&'static str, &'static str), u64>;

/// Fails unless each guest has boxes of each layer, and each box on a layer's has its colour.
pub fn layers(opened: &Opened) -> Result<Samples> {
    let mut samples = Samples::new();
    for one in &opened.boxes {
        let [_, vcpu, layer, ..] = one.path(&opened.boxes)[..] else { continue };
        let known = LAYERS.iter().find(|(name, _)| *name == layer);
        let (name, order) = known.with_context(|| format!("{layer:?} is no layer"))?;
        let colour = one.rgb()?;
        ensure!(
            in_order(colour, *order),
            "{} of the layer {layer} has the colour {colour:?}",
            one.name
        );
        let guest = GUESTS.iter().find(|guest| vcpu.starts_with(&format!("{guest} vCPU ")));
        if let (Some(guest), true) = (guest, one.name == layer) {
            *samples.entry((guest, name)).or_default() += one.samples;
        }
    }
    for guest in GUESTS {
        for (layer, _) in LAYERS {
            ensure!(samples.contains_key(&(guest, layer)), "no samples of {guest} in {layer}");
        }
    }
    Ok(samples)
}

/// Returns whether the parts of a colour are in this order, from the strongest to the weakest.
fn in_order(colour: [u8; 3], order: [usize; 3]) -> bool {
    let [first, second, third] = order.map(|index| colour[index]);
    first > second && second >= third
}

/// Returns a table of samples for people.
pub fn table(samples: &Samples) -> String {
    let line = |((guest, layer), samples): (&(&str, &str), &u64)| {
        format!("{samples:>10}  {guest:<10} {layer}\n")
    };
    samples.iter().map(line).collect()
}

/// Shows a screen of the view, and fails unless each of these texts is in some line. Returns the
/// screenshot.
pub fn shows(written: &Path, name: &str, expected: &[&str]) -> Result<PathBuf> {
    let shown = terminal::show(written, name)?;
    for text in expected {
        let is_there = shown.lines.iter().any(|line| line.contains(text));
        ensure!(is_there, "no line has {text:?}:\n{}", shown.lines.join("\n"));
    }
    Ok(shown.screenshot)
}
