// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Shows the samples of one function by its lines of source and by its instructions.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter, Instruction};
use object::{Architecture, Object, ObjectSection, ObjectSymbol, SymbolKind};
use perfctr_gate::text::harmless;

use super::symbols::{self, Named, unwound};
use super::table::percent;
use crate::elf::build_id;
use crate::profile::{Frame, Module, Profile};

/// The most instructions of one function that are shown.
const INSTRUCTIONS_MAX: usize = 100_000;

/// Returns the text of a function: its instructions with their samples, in the order of addresses.
/// A line of source comes before its instructions.
pub fn annotate(profile: &Profile, names: &[Named], function: &str) -> Result<String> {
    let found = samples(profile, names, function);
    ensure!(
        !found.is_empty(),
        "no samples found in a function {function}: `perfctr report` lists those that have some"
    );
    let all = profile.samples();
    let mut text = String::new();
    for (module, addresses) in found {
        let module = module.map(|index| (index, &profile.modules[index as usize]));
        let Some((index, module)) = module.filter(|(_, module)| module.file().is_absolute()) else {
            bail!("{function} is in no file, so nobody knows its instructions");
        };
        let path = harmless(&module.path);
        let code = Code::open(module, &addresses).with_context(|| path.clone())?;
        let own: u64 = addresses.values().sum();
        let (period, event) = (profile.period, harmless(&profile.event));
        text +=
            &format!("{function} in {path}: {own} of {all} samples, one every {period} {event}\n");
        text += &format!("{:>10} {:>7}  address   instruction\n", "samples", "%");
        text += &code.lines(profile, index, &addresses, own)?;
    }
    Ok(text)
}

/// Returns how many samples each address of a function has, by the files that have a function of
/// this name.
fn samples(
    profile: &Profile,
    names: &[Named],
    function: &str,
) -> BTreeMap<Option<u32>, BTreeMap<u64, u64>> {
    let mut found = BTreeMap::<_, BTreeMap<u64, u64>>::new();
    for stack in &profile.stacks {
        // A stack has at least one frame.
        let innermost = stack.frames[0] as usize;
        if names[innermost].symbol() == function {
            let Frame { module, address } = profile.frames[innermost];
            *found.entry(module).or_default().entry(address).or_default() += stack.samples;
        }
    }
    found
}

/// The code of a function.
struct Code {
    start: u64,
    bytes: Vec<u8>,
}

impl Code {
    /// Reads the function that contains these addresses.
    fn open(module: &Module, addresses: &BTreeMap<u64, u64>) -> Result<Self> {
        let bytes = fs::read(module.file())?;
        let file = object::File::parse(&*bytes)?;
        ensure!(build_id(&file) == module.build_id, "this is not the file that was recorded");
        let architecture = file.architecture();
        ensure!(
            architecture == Architecture::X86_64,
            "code for {architecture:?} found, for X86_64 expected"
        );
        // There is at least one address.
        let first = addresses.keys().next().copied().unwrap_or(0);
        let range = range(&file, first).context("nothing says where the function ends")?;
        let section = file.sections().find_map(|section| {
            let size = range.end.checked_sub(range.start)?;
            section.data_range(range.start, size).ok()?
        });
        let bytes = section.context("the function is in no section of the file")?.to_vec();
        Ok(Self { start: range.start, bytes })
    }

    /// Returns a line for each instruction, and one before those of each line of source.
    fn lines(
        &self,
        profile: &Profile,
        module: u32,
        samples: &BTreeMap<u64, u64>,
        all: u64,
    ) -> Result<String> {
        let decoder = Decoder::with_ip(64, &self.bytes, self.start, DecoderOptions::NONE);
        let instructions: Vec<Instruction> = decoder.into_iter().take(INSTRUCTIONS_MAX).collect();
        let frame = |one: &Instruction| Frame { module: Some(module), address: one.ip() };
        let mut places = profile.clone();
        places.frames = instructions.iter().map(frame).collect();
        let named = symbols::name(&places, |_| {});
        let (mut formatter, mut sources) = (GasFormatter::new(), Sources::default());
        formatter.options_mut().set_branch_leading_zeros(false);
        let (mut text, mut before, mut shown) = (String::new(), String::new(), 0);
        for (instruction, named) in instructions.iter().zip(&named) {
            let line = named.line();
            if line != before {
                let source = sources.line(named).unwrap_or_default();
                text += format!("{:>20}{line}  {source}", "").trim_end();
                text.push('\n');
                before = line;
            }
            let mut written = String::new();
            formatter.format(instruction, &mut written);
            let own = samples.get(&instruction.ip()).copied().unwrap_or(0);
            shown += own;
            let number = if own == 0 { String::new() } else { own.to_string() };
            let share = if own == 0 { String::new() } else { percent(own, all) };
            let address = instruction.ip();
            text += &format!("{number:>10} {share:>7}  {address:<8x}  {written}\n");
        }
        if shown < all {
            // A function may be in several pieces.
            text += &format!("{:>10} {:>7}  elsewhere\n", all - shown, percent(all - shown, all));
        }
        Ok(text)
    }
}

/// Returns the range of the function that contains this address: by the file's symbols, or else by
/// its data for unwinders.
fn range(file: &object::File<'_>, address: u64) -> Option<Range<u64>> {
    let symbols = file.symbols().chain(file.dynamic_symbols());
    let functions = symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0);
    let mut ranges =
        functions.map(|symbol| symbol.address()..symbol.address().saturating_add(symbol.size()));
    let by_symbol = ranges.find(|range| range.contains(&address));
    by_symbol.or_else(|| unwound(file)?.into_iter().find(|range| range.contains(&address)))
}

/// The lines of source files, each of which is read once.
#[derive(Default)]
struct Sources(HashMap<String, Option<String>>);

impl Sources {
    /// Returns the text of the innermost line of a place, if the file is there.
    fn line(&mut self, named: &Named) -> Option<String> {
        let place = named.places.first()?;
        let path = place.file.clone()?;
        let text = self.0.entry(path.clone()).or_insert_with(|| fs::read_to_string(path).ok());
        let line = text.as_deref()?.lines().nth(place.line.checked_sub(1)? as usize)?;
        Some(harmless(line.trim_end()).replace("\\t", "    "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::profile;
    use super::*;

    #[test]
    fn an_instruction_has_the_samples_of_all_stacks_that_end_there() {
        let (mut profile, names) = profile();
        let ends: Vec<u32> = profile.stacks.iter().map(|stack| stack.frames[0]).collect();
        assert_eq!(ends, [0, 0, 1], "two stacks end at one instruction");
        profile.stacks[0].samples = 5;
        // Both instructions are in `f`.
        let of_f = [(profile.frames[0].address, 6), (profile.frames[1].address, 2)];
        let found = samples(&profile, &names, "f");
        assert_eq!(found, BTreeMap::from([(profile.frames[0].module, BTreeMap::from(of_f))]));
    }
}
