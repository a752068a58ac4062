//! The parts of io_uring that the tests need: one request at a time.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::call;

pub const NOP: u8 = 0;
pub const ACCEPT: u8 = 13;
pub const CONNECT: u8 = 16;
pub const RECV: u8 = 27;
/// An io_uring command to a file. For sockets the first such command is SOCKET_URING_OP_SIOCINQ (0).
pub const COMMAND: u8 = 46;
/// From 6.8 on.
pub const INSTALL: u8 = 54;
const MESSAGE: u8 = 40;
pub const SETUP_SQPOLL: u32 = 1 << 1;

const REGISTER_BUFFERS: i64 = 0;
const REGISTER_FILES: i64 = 2;
const REGISTER_PERSONALITY: i64 = 9;
/// IOSQE_FIXED_FILE: the file is a place in the ring's own table.
const FIXED_FILE: u8 = 1;
/// IORING_MSG_SEND_FD
const SEND_FILE: u64 = 1;
/// IORING_MSG_RING_CQE_SKIP: the other ring gets no completion.
const WITHOUT_COMPLETION: u32 = 1;
const ENTER_GETEVENTS: i64 = 1;
/// For a ring's own thread, which sleeps after a second without work.
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

    /// Registers the present credentials.
    pub fn register_personality(&self) -> u16 {
        let ring = self.descriptor.as_raw_fd().into();
        let id = call(libc::SYS_io_uring_register, &[ring, REGISTER_PERSONALITY]).unwrap();
        u16::try_from(id).unwrap()
    }

    /// Registers a buffer: its pages are pinned until the ring ends.
    pub fn register_buffer(&self, buffer: &mut [u8]) -> io::Result<i64> {
        let part = [libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        }];
        let ring = self.descriptor.as_raw_fd().into();
        let parts = part.as_ptr() as i64;
        call(
            libc::SYS_io_uring_register,
            &[ring, REGISTER_BUFFERS, parts, 1],
        )
    }

    /// Makes the ring's table of files, with this one in the first place; -1: an empty place.
    pub fn register_file(&self, file: RawFd) {
        let files = [file];
        let ring = self.descriptor.as_raw_fd().into();
        let files = files.as_ptr() as i64;
        call(
            libc::SYS_io_uring_register,
            &[ring, REGISTER_FILES, files, 1],
        )
        .unwrap();
    }

    /// Puts the file in the first place of this ring's table into the first place of another's.
    pub fn pass_file(&self, to: &Self) -> i32 {
        let mut entry = [0_u8; 64];
        entry[0] = MESSAGE;
        entry[4..8].copy_from_slice(&to.descriptor.as_raw_fd().to_ne_bytes());
        entry[16..24].copy_from_slice(&SEND_FILE.to_ne_bytes());
        entry[28..32].copy_from_slice(&WITHOUT_COMPLETION.to_ne_bytes());
        // The place in the other ring's table, counted from 1.
        entry[44..48].copy_from_slice(&1_u32.to_ne_bytes());
        self.run(&entry)
    }

    /// Runs one operation on the file in the first place of the ring's table.
    pub fn submit_with_own_file(&self, operation: u8, buffer: &mut [u8]) -> i32 {
        let mut entry = [0_u8; 64];
        entry[0] = operation;
        entry[1] = FIXED_FILE;
        if !buffer.is_empty() {
            entry[16..24].copy_from_slice(&(buffer.as_mut_ptr() as u64).to_ne_bytes());
            entry[24..28].copy_from_slice(&(buffer.len() as u32).to_ne_bytes());
        }
        self.run(&entry)
    }

    /// Runs one operation and returns its result.
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

    /// Connects and returns the result. `address` is a struct sockaddr.
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
            // SAFETY: an offset from the kernel, in the mapping of the rings.
            unsafe { self.rings.add(offset as usize).cast::<u32>() }
        };
        // SAFETY: the kernel accesses the rings only in io_uring_enter. There is room for one
        // entry, and one completion has come when the call returns.
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
