//! As much of io_uring as the tests need: one request at a time.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::call;

pub const NOP: u8 = 0;
pub const ACCEPT: u8 = 13;
pub const CONNECT: u8 = 16;
pub const RECV: u8 = 27;
/// With its first command for sockets, SOCKET_URING_OP_SIOCINQ (0).
pub const COMMAND: u8 = 46;
pub const SETUP_SQPOLL: u32 = 1 << 1;

const REGISTER_PERSONALITY: i64 = 9;
const ENTER_GETEVENTS: i64 = 1;
/// For a ring's own thread, which sleeps when there was nothing for a second.
const ENTER_WAKE: i64 = 2;
const OFFSET_SQES: i64 = 0x1000_0000;

/// struct io_uring_params
#[repr(C)]
#[derive(Default)]
struct Parameters {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    rest: [u32; 7],
    /// head, tail, ring_mask, ring_entries, flags, dropped, array, reserved, address
    sq: [u32; 10],
    /// head, tail, ring_mask, ring_entries, overflow, cqes, flags, reserved, address
    cq: [u32; 10],
}

pub struct Ring {
    descriptor: OwnedFd,
    parameters: Parameters,
    rings: *mut u8,
    entries: *mut u8,
}

fn map(descriptor: RawFd, offset: i64) -> *mut u8 {
    let address = call(
        libc::SYS_mmap,
        &[
            0,
            4096,
            (libc::PROT_READ | libc::PROT_WRITE).into(),
            libc::MAP_SHARED.into(),
            descriptor.into(),
            offset,
        ],
    )
    .unwrap();
    address as *mut u8
}

impl Ring {
    pub fn new(flags: u32) -> io::Result<Self> {
        let mut parameters = Parameters {
            flags,
            ..Parameters::default()
        };
        let address = std::ptr::from_mut(&mut parameters) as i64;
        let number = call(libc::SYS_io_uring_setup, &[4, address])?;
        // SAFETY: a descriptor that the kernel has just made.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number as RawFd) };
        // Both rings are one mapping since 5.4.
        let rings = map(descriptor.as_raw_fd(), 0);
        let entries = map(descriptor.as_raw_fd(), OFFSET_SQES);
        Ok(Self {
            descriptor,
            parameters,
            rings,
            entries,
        })
    }

    /// Registers the credentials of this moment.
    pub fn register_personality(&self) -> u16 {
        let ring = self.descriptor.as_raw_fd().into();
        let id = call(libc::SYS_io_uring_register, &[ring, REGISTER_PERSONALITY]).unwrap();
        u16::try_from(id).unwrap()
    }

    /// Does one thing and gives its result.
    pub fn submit(&self, operation: u8, file: RawFd, buffer: &mut [u8], personality: u16) -> i32 {
        let mut entry = [0_u8; 64];
        entry[0] = operation;
        entry[4..8].copy_from_slice(&file.to_ne_bytes());
        if !buffer.is_empty() {
            entry[16..24].copy_from_slice(&(buffer.as_mut_ptr() as u64).to_ne_bytes());
            entry[24..28].copy_from_slice(&(buffer.len() as u32).to_ne_bytes());
        }
        entry[42..44].copy_from_slice(&personality.to_ne_bytes());
        self.run(&entry)
    }

    /// Connects and gives the result. `address` is a struct sockaddr.
    pub fn connect(&self, file: RawFd, address: &[u8]) -> i32 {
        let mut entry = [0_u8; 64];
        entry[0] = CONNECT;
        entry[4..8].copy_from_slice(&file.to_ne_bytes());
        entry[8..16].copy_from_slice(&(address.len() as u64).to_ne_bytes());
        entry[16..24].copy_from_slice(&(address.as_ptr() as u64).to_ne_bytes());
        self.run(&entry)
    }

    /// Submits one entry and waits for its completion.
    fn run(&self, entry: &[u8; 64]) -> i32 {
        let word = |offset: u32| {
            // SAFETY: an offset that the kernel gave, in the mapping of the rings.
            unsafe { self.rings.add(offset as usize).cast::<u32>() }
        };
        // SAFETY: the kernel reads and writes the rings in io_uring_enter only; there is room for
        // one entry, and one completion has come when it returns.
        unsafe {
            std::ptr::copy_nonoverlapping(entry.as_ptr(), self.entries, 64);
            let tail = word(self.parameters.sq[1]);
            let place = *tail & *word(self.parameters.sq[2]);
            *word(self.parameters.sq[6]).add(place as usize) = 0;
            tail.write_volatile(*tail + 1);
            let ring = self.descriptor.as_raw_fd().into();
            let flags = ENTER_GETEVENTS | ENTER_WAKE;
            call(libc::SYS_io_uring_enter, &[ring, 1, 1, flags]).unwrap();
            let head = word(self.parameters.cq[0]);
            let place = head.read_volatile() & *word(self.parameters.cq[2]);
            let completion = word(self.parameters.cq[5])
                .cast::<u8>()
                .add(place as usize * 16);
            let result = completion.add(8).cast::<i32>().read_volatile();
            head.write_volatile(*head + 1);
            result
        }
    }
}
