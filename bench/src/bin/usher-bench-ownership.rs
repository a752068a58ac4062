//! Measures the cost of the ownership programs in instructions. It runs as root in a guest that counts
//! them:
//!
//!     tests/vm/run --kernel 6.12 --icount -- .../usher-bench-ownership
//!
//! There a nanosecond is an instruction. A user's process measures the same operations twice: before
//! the programs are attached, and afterwards. They cannot be detached again, so these two do not
//! alternate. The two listeners of one measurement do: the process's own, and one that it received,
//! which is labelled as its user's the second time. The difference between the two the first time
//! is the noise of the method. Prints `usher_bench::Ownership` as JSON.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::{pread, read, write};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, accept_with, connect, recv, send,
    socket_with, sockopt,
};
use rustix::pipe::{SpliceFlags, pipe, splice};
use usher_bench::busy::check_clock;
use usher_bench::{Measured, Ownership, Spread};
use usher_kernel::ownership;
use usher_local::paths;
use usher_system::privileges;

/// The user who measures and owns the labelled listener.
const USER: u32 = 4711;
/// Argument of the measuring process, which receives its listener as standard input.
const MEASURE: &str = "measure";
const SAMPLES: usize = 101;
/// Samples of starting a program: each starts a process.
const STARTS: usize = 51;
/// Messages in a sample. Every second one of 16 KiB takes fresh memory, which the kernel clears.
const BATCH: u32 = 8;
/// Samples that do not count: they warm up caches.
const WARM_UP: usize = 10;
const MESSAGES: [(usize, &str); 2] = [(1, "1 B"), (16 << 10, "16 KiB")];
/// A file in memory: a guest waits for a disk, and that time would count.
const FILE: &str = "/dev/shm/usher-bench";
/// A copy of busybox, which needs no other file. Its name selects its function.
const PROGRAM: &str = "/dev/shm/true";

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os("USHER_VM").is_none() {
        return Err(
            "attaches programs to the whole host: run it in a guest, by tests/vm/run".into(),
        );
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => compare(),
        [word] if word == MEASURE => measure(),
        _ => Err("usage: usher-bench-ownership, without arguments".into()),
    }
}

fn compare() -> Result<(), Box<dyn Error>> {
    check_clock()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let without = measured_by_user(&listener)?;
    // Everything that a keeper puts in force.
    let pins = Path::new(paths::OWNERSHIP_PIN_DIRECTORY);
    std::fs::create_dir_all(paths::PIN_DIRECTORY)?;
    let programs = ownership::Ownership::open(pins)?;
    programs.guard(
        Path::new(paths::PIN_DIRECTORY),
        &usher_bpf::Objects::default(),
    )?;
    programs.own_listener(listener.as_fd(), USER)?;
    let figures = Ownership {
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")?
            .trim()
            .to_owned(),
        without,
        with: measured_by_user(&listener)?,
    };
    serde_json::to_writer_pretty(io::stdout(), &figures)?;
    println!();
    Ok(())
}

fn measured_by_user(listener: &TcpListener) -> Result<Vec<Measured>, Box<dyn Error>> {
    let output = Command::new(std::env::current_exe()?)
        .arg(MEASURE)
        .stdin(Stdio::from(listener.as_fd().try_clone_to_owned()?))
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("the measuring process ended with {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn measure() -> Result<(), Box<dyn Error>> {
    privileges::become_user(USER, USER, &[])?;
    let given = TcpListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    let own = TcpListener::bind("127.0.0.1:0")?;
    let clock = Spread::new(samples(SAMPLES, || Ok(timed(|| Ok(()))?.0))?).median;
    let mut figures = Vec::new();
    let measured = |operation: String, own: Spread, given: Option<Spread>| Measured {
        operation,
        own: own.less(clock),
        given: given.map(|given| given.less(clock)),
    };
    for (step, name) in STEPS.into_iter().enumerate() {
        let (own, given) = by_turns(
            || Ok(handshake(&own)?[step]),
            || Ok(handshake(&given)?[step]),
        )?;
        figures.push(measured(name.into(), own, Some(given)));
    }
    let (own, given) = (Connection::new(&own)?, Connection::new(&given)?);
    for (size, size_name) in MESSAGES {
        let mut message = vec![b'u'; size];
        for (name, transfer) in TRANSFERS {
            // Each has its own buffer, because both are borrowed at once.
            let mut other = message.clone();
            let (own, given) = by_turns(
                || several(|| transfer(&own, &mut message)),
                || several(|| transfer(&given, &mut other)),
            )?;
            let operation = format!("{name}, {size_name}");
            figures.push(measured(operation, own, Some(given)));
        }
    }
    std::fs::write(FILE, "u")?;
    std::fs::copy("/bin/busybox", PROGRAM)?;
    let file = rustix::fs::open(FILE, OFlags::RDONLY, Mode::empty())?;
    let reads = samples(SAMPLES, || read_file(file.as_fd()))?;
    let opens = samples(SAMPLES, open_file)?;
    let starts = samples(STARTS, start_program)?;
    for (name, samples) in [
        ("pread of a file, 1 B", reads),
        ("open and close of a file", opens),
        ("start and wait for a program", starts),
    ] {
        figures.push(measured(name.into(), Spread::new(samples), None));
    }
    serde_json::to_writer(io::stdout(), &figures)?;
    Ok(())
}

/// The time that `act` took, and its result.
fn timed<T>(act: impl FnOnce() -> io::Result<T>) -> io::Result<(Duration, T)> {
    let begun = Instant::now();
    let value = act()?;
    Ok((begun.elapsed(), value))
}

/// The average of one in a batch.
fn several(mut act: impl FnMut() -> io::Result<Duration>) -> io::Result<Duration> {
    let mut taken = Duration::ZERO;
    for _ in 0..BATCH {
        taken += act()?;
    }
    Ok(taken / BATCH)
}

/// The samples that `act` returns for each of its runs.
fn samples(count: usize, mut act: impl FnMut() -> io::Result<Duration>) -> io::Result<Vec<f64>> {
    for _ in 0..WARM_UP {
        act()?;
    }
    (0..count).map(|_| Ok(act()?.as_nanos() as f64)).collect()
}

/// Runs two alternately, each first every other time.
fn by_turns(
    mut one: impl FnMut() -> io::Result<Duration>,
    mut other: impl FnMut() -> io::Result<Duration>,
) -> io::Result<(Spread, Spread)> {
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + SAMPLES {
        let (first, second);
        if round % 2 == 0 {
            first = one()?;
            second = other()?;
        } else {
            second = other()?;
            first = one()?;
        }
        if round >= WARM_UP {
            ones.push(first.as_nanos() as f64);
            others.push(second.as_nanos() as f64);
        }
    }
    Ok((Spread::new(ones), Spread::new(others)))
}

/// The steps of a handshake. Over loopback the kernel handles all its packets before connect returns.
const STEPS: [&str; 2] = ["connect, both ends", "accept"];

/// Makes a connection; returns the times of [`STEPS`].
fn handshake(listener: &TcpListener) -> io::Result<[Duration; STEPS.len()]> {
    let client = socket_to_connect()?;
    let address = listener.local_addr()?;
    let (connecting, ()) = timed(|| Ok(connect(&client, &address)?))?;
    let (accepting, server) = timed(|| Ok(accept_with(listener, SocketFlags::CLOEXEC)?))?;
    // A reset leaves nothing behind that would slow later connections.
    sockopt::set_socket_linger(&client, Some(Duration::ZERO))?;
    drop(client);
    drop(server);
    Ok([connecting, accepting])
}

fn socket_to_connect() -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// A connection over loopback and a pipe. The server's socket has its listener's label.
struct Connection {
    client: OwnedFd,
    server: OwnedFd,
    pipe: (OwnedFd, OwnedFd),
}

impl Connection {
    fn new(listener: &TcpListener) -> io::Result<Self> {
        let client = socket_to_connect()?;
        let address: SocketAddr = listener.local_addr()?;
        connect(&client, &address)?;
        let server = accept_with(listener, SocketFlags::CLOEXEC)?;
        for end in [&client, &server] {
            sockopt::set_tcp_nodelay(end, true)?;
        }
        Ok(Self {
            client,
            server,
            pipe: pipe()?,
        })
    }
}

/// Moves a message from one side to the other; returns the time on the server's side.
type Transfer = fn(&Connection, &mut [u8]) -> io::Result<Duration>;

const TRANSFERS: [(&str, Transfer); 5] = [
    ("write", |connection, message| {
        let (taken, count) = timed(|| Ok(write(&connection.server, message)?))?;
        whole(count, message)?;
        drain(connection.client.as_fd(), message)?;
        Ok(taken)
    }),
    ("send", |connection, message| {
        let (taken, count) = timed(|| Ok(send(&connection.server, message, SendFlags::empty())?))?;
        whole(count, message)?;
        drain(connection.client.as_fd(), message)?;
        Ok(taken)
    }),
    ("read", |connection, message| {
        whole(write(&connection.client, message)?, message)?;
        let (taken, count) = timed(|| Ok(read(&connection.server, &mut *message)?))?;
        whole(count, message)?;
        Ok(taken)
    }),
    ("recv", |connection, message| {
        whole(write(&connection.client, message)?, message)?;
        let (taken, (count, _)) =
            timed(|| Ok(recv(&connection.server, &mut *message, RecvFlags::empty())?))?;
        whole(count, message)?;
        Ok(taken)
    }),
    ("splice to a pipe", |connection, message| {
        whole(write(&connection.client, message)?, message)?;
        let (reader, writer) = &connection.pipe;
        let (length, flags) = (message.len(), SpliceFlags::empty());
        let (taken, count) = timed(|| {
            Ok(splice(
                &connection.server,
                None,
                writer,
                None,
                length,
                flags,
            )?)
        })?;
        whole(count, message)?;
        drain(reader.as_fd(), message)?;
        Ok(taken)
    }),
];

/// Fails on a partial transfer, which would be a different operation.
fn whole(count: usize, message: &[u8]) -> io::Result<()> {
    if count == message.len() {
        return Ok(());
    }
    let expected = message.len();
    Err(io::Error::other(format!(
        "{count} of {expected} bytes went at once"
    )))
}

fn drain(from: BorrowedFd<'_>, message: &mut [u8]) -> io::Result<()> {
    let count = read(from, &mut *message)?;
    whole(count, message)
}

fn read_file(file: BorrowedFd<'_>) -> io::Result<Duration> {
    let mut byte = [0];
    let (taken, count) = timed(|| Ok(pread(file, &mut byte, 0)?))?;
    whole(count, &byte)?;
    Ok(taken)
}

fn open_file() -> io::Result<Duration> {
    let (taken, ()) = timed(|| {
        drop(rustix::fs::open(FILE, OFlags::RDONLY, Mode::empty())?);
        Ok(())
    })?;
    Ok(taken)
}

fn start_program() -> io::Result<Duration> {
    let (taken, status) = timed(|| Command::new(PROGRAM).status())?;
    if !status.success() {
        return Err(io::Error::other(format!("{PROGRAM}: {status}")));
    }
    Ok(taken)
}
