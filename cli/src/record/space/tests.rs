// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests on the process of the test itself.
#![expect(unsafe_code, reason = "the registers of this very thread")]

use std::arch::asm;

use super::*;

/// Returns the registers of the function that this is a part of.
#[inline(always)]
fn registers() -> user_regs_struct {
    // SAFETY: the structure has only numbers, which may be 0.
    let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: the instructions read registers, and write only those that are named here.
    unsafe {
        asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) registers.rip,
             out(reg) registers.rsp, out(reg) registers.rbp, options(nomem, nostack));
    }
    registers
}

#[test]
fn a_stack_has_each_caller_once_though_a_file_was_loaded_since() {
    let (registers, mut files) = (registers(), Files::default());
    let space = || Space::of(std::process::id()).unwrap();
    let expected = space().stack(&mut files, &registers, true);
    assert!(expected.len() > 3, "the test's thread was begun by the library: {expected:?}");
    let mut space = space();
    for _ in 0..2 {
        space.look(&mut files);
        // This makes the files of the other callers look new.
        space.maps.retain(|map| map.addresses.contains(&registers.rip));
        assert_eq!(space.stack(&mut files, &registers, true), expected);
    }
    let alone = space.stack(&mut files, &registers, false);
    assert_eq!(alone, expected[..1]);
}

/// Where the linker is lld, this program's own code begins within a page of its file.
#[test]
fn the_place_in_a_file_that_is_mapped_is_code_of_that_file() {
    let text = fs::read("/proc/self/maps").unwrap();
    let mut maps: Vec<Map> = text.split(|&byte| byte == b'\n').filter_map(Map::parse).collect();
    maps.retain(|map| map.path.as_bytes().starts_with(b"/"));
    assert!(maps.len() > 1, "this program and a library: {maps:?}");
    let mut files = Files::default();
    for map in &maps {
        let file = files.of(&map.path);
        let code = &file.facts.code;
        assert!(file.address(map.offset).is_some(), "{map:x?} is not in its code: {code:x?}");
    }
}

#[test]
fn the_upper_half_of_all_addresses_is_the_kernels() {
    let (mut space, mut files) = (Space::unstopped(0), Files::default());
    let (kernel, user) = (1 << 63, (1 << 63) - 1);
    assert!(space.knows(&[kernel, u64::MAX]) && !space.knows(&[user]));
    let frames = space.frames(&mut files, &[kernel, u64::MAX, user]);
    let modules: Vec<_> = frames.iter().map(|frame| frame.module).collect();
    assert_eq!(modules, [Some(0), Some(0), None]);
    assert_eq!(frames[0].address, kernel);
    let [module] = &*files.modules() else { panic!("one module expected") };
    assert_eq!((&*module.path, module.layer), ("[kernel]", Some(Layer::Kernel)));
}

#[test]
fn the_outermost_callers_of_a_running_process_are_left_out() {
    let (mut space, mut files) = (Space::unstopped(0), Files::default());
    for length in [1, DEPTH_MAX, DEPTH_MAX + 3] {
        let addresses: Vec<u64> = (7..7 + length as u64).collect();
        let frames = space.frames(&mut files, &addresses);
        let found: Vec<u64> = frames.iter().map(|frame| frame.address).collect();
        assert_eq!(found, addresses[..length.min(DEPTH_MAX)], "{length} addresses");
    }
}

#[test]
fn what_a_process_had_mapped_is_known_after_its_end() {
    let (mut space, mut files) = (Space::unstopped(std::process::id()), Files::default());
    assert!(space.look(&mut files));
    let before = space.maps.clone();
    // No process has this number.
    space.process = u32::MAX;
    assert!(!space.look(&mut files));
    assert_eq!(space.maps, before);
}

#[test]
fn lines_of_maps_are_taken_apart() {
    let line = "55d0-55e0 r-xp 00002000 08:01 42    /opt/a b (deleted)";
    let map = Map { addresses: 0x55d0..0x55e0, offset: 0x2000, path: "/opt/a b (deleted)".into() };
    assert_eq!(Map::parse(line.as_bytes()), Some(map));
    let path = |line: &[u8]| Map::parse(line).unwrap().path;
    assert_eq!(path(b"7ff0-7ff1 r-xp 00000000 00:00 0   [vdso]"), "[vdso]");
    assert_eq!(path(b"7ff0-7ff1 rwxp 00000000 00:00 0 "), "");
    assert_eq!(path(b"7ff0-7ff1 r-xp 0 08:01 42 /\xe6/a").as_bytes(), b"/\xe6/a");
    for line in ["55d0-55e0 r--p 00002000 08:01 42 /a", "", "x-y r-xp 0 0 0", "1 r-xp 0"] {
        assert_eq!(Map::parse(line.as_bytes()), None);
    }
}

#[test]
fn this_very_program_is_taken_apart() {
    let path = std::env::current_exe().unwrap();
    let mapped = Mapped::open(path.as_os_str(), 3);
    assert!(mapped.sections.eh_frame.is_some() && !mapped.facts.code.is_empty());
    assert_eq!(mapped.address(u64::MAX), None);
    let mut space = Space::of(std::process::id()).unwrap();
    let mut files = Files::default();
    assert!(space.look(&mut files) && !space.look(&mut files));
    let here = this_very_program_is_taken_apart as *const () as u64;
    let frame = space.frame(&mut files, here);
    let modules = files.modules();
    let module = &modules[frame.module.unwrap() as usize];
    assert_eq!(module.path, path.to_str().unwrap());
    let loader = addr2line::Loader::new(&path).unwrap();
    let symbol = loader.find_symbol(frame.address).unwrap();
    assert!(symbol.contains("this_very_program_is_taken_apart"), "{symbol}");
}
