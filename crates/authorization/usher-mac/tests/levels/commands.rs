//! The effects of commands of ioctl(2), and the families of sockets that modules decide about, as
//! usher-mac-levels(7) lists them.

use usher_label::Level;

use crate::EACCES;
use crate::asked::words;
use crate::cases::{Case, Element};
use crate::model::{BOTH, Module, WRITES, Ways};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Nothing,
    Asks,
    Changes,
    ChangesSystem,
    Types,
}

use Effect::{Asks, Changes, ChangesSystem, Nothing, Types};

/// Commands, with what they do to a block device, and to a file or directory.
const COMMANDS: [(u32, Effect, Effect); 19] = [
    // FIOCLEX, FIONREAD
    (0x5451, Nothing, Nothing),
    (0x541b, ChangesSystem, Nothing),
    // TIOCSTI and TIOCLINUX
    (0x5412, ChangesSystem, Nothing),
    (0x541c, ChangesSystem, Nothing),
    // KDSKBENT and KDSKBSENT, which say what a key types, and KDGKBSENT
    (0x4b47, ChangesSystem, Nothing),
    (0x4b49, ChangesSystem, Nothing),
    (0x4b48, ChangesSystem, Nothing),
    // SNDRV_TIMER_IOCTL_PARAMS, which has the type and number of TIOCSTI
    (0x4050_5412, ChangesSystem, Nothing),
    // BLKGETSIZE64 and BLKDISCARD
    (0x8008_1272, Asks, Nothing),
    (0x1277, Changes, Nothing),
    // LOOP_GET_STATUS64 and LOOP_CHANGE_FD
    (0x4c05, Asks, Nothing),
    (0x4c06, ChangesSystem, Nothing),
    // FS_IOC_SETFLAGS, of 64 and 32 bits, and EXT4_IOC_GROUP_EXTEND
    (0x4008_6602, ChangesSystem, Changes),
    (0x4004_6602, ChangesSystem, Changes),
    (0x4008_6607, ChangesSystem, ChangesSystem),
    // FICLONE and FIDEDUPERANGE
    (0x4004_9409, ChangesSystem, Changes),
    (0xc018_9436, ChangesSystem, Nothing),
    // F2FS_IOC_MOVE_RANGE and F2FS_IOC_GET_FEATURES
    (0xc020_f509, ChangesSystem, Changes),
    (0x8004_f50c, ChangesSystem, Nothing),
];

fn chosen(case: &Case) -> (u32, Effect, Effect) {
    COMMANDS[case.noise as usize % COMMANDS.len()]
}

pub fn command(case: &Case) -> u32 {
    chosen(case).0
}

fn effect(case: &Case) -> Effect {
    let (command, on_block_device, on_file) = chosen(case);
    let makes_devices = case.special.0 == 10 && [234, 236, 237].contains(&case.special.1);
    match case.kind {
        // Every driver of a serial line has majors of its own.
        2 if [0x5412, 0x541c, 0x4b47, 0x4b49].contains(&command) => Types,
        2 if makes_devices && command != 0x5451 => ChangesSystem,
        4 | 8 => on_file,
        6 => on_block_device,
        _ => Nothing,
    }
}

fn is_exempt(own: &Element) -> bool {
    match own {
        Element::Nothing => true,
        Element::Unknown => false,
        Element::Of(levels) => levels.effective() == Some(&Level::Equal),
    }
}

fn is_high(own: &Element) -> bool {
    matches!(own, Element::Of(levels) if levels.effective() == Some(&Level::High))
}

/// `attributes`: what reading them counts as.
pub fn controls(
    module: Module,
    [own, object]: [&Element; 2],
    case: &Case,
    attributes: Ways,
) -> i32 {
    let usual = case.usual_of_file(&module.usual());
    match effect(case) {
        Nothing => 0,
        Asks => module.may(own, object, &usual, attributes),
        Changes => module.may(own, object, &usual, WRITES),
        Types if is_exempt(own) || (module == Module::Biba && is_high(own)) => 0,
        Types => EACCES,
        ChangesSystem if module == Module::Biba && !is_exempt(own) && !is_high(own) => EACCES,
        ChangesSystem => module.may(own, object, &usual, BOTH),
    }
}

/// The family, protocol and permission of a new socket.
fn socket(case: &Case) -> [u32; 3] {
    let noise = case.noise;
    let protocol = if noise & 64 == 0 { 0 } else { 256 };
    [noise & 63, protocol, noise >> 7 & 1]
}

pub fn made_socket(case: &Case) -> Vec<u8> {
    let [family, protocol, is_permitted] = socket(case);
    words(&[family, case.noise & 7, protocol, is_permitted])
}

pub fn makes_socket(own: &Element, case: &Case) -> i32 {
    let [family, protocol, is_permitted] = socket(case);
    let is_decided = match family {
        1 | 16 => true,
        2 | 10 => protocol != 256,
        _ => false,
    };
    if is_exempt(own) || is_decided || is_permitted == 1 {
        0
    } else {
        EACCES
    }
}

/// Sets an option that may make a socket of another family, or not.
pub fn sets_option(own: &Element, case: &Case) -> i32 {
    if is_exempt(own) || case.argument == 0 {
        0
    } else {
        EACCES
    }
}
