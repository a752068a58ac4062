//! The marks of sockets, and the packets that pass. Without SAs: this also runs where the kernel has
//! no ESP.

#[macro_use]
#[path = "../world/mod.rs"]
mod world;

mod changes;
mod held;
mod live;
mod marks;
mod packets;
mod policies;
mod programs;
mod scripts;

use usher_ipsec::MarkMask;
use world::*;

const DISCARD: u32 = 0x0020_0000;
const SIGNED: u32 = 0x0100_0000;
