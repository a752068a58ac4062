//! The starter's answer to an order that arrives without its descriptors.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::process::{Child, Command as Program, Stdio};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, Resource, Rlimit};
use usher_daemon::packet::PacketSocket;
use usher_kernel::worker::{Command, Entry, Event, MAX_REQUEST, Order, Report, Request};

/// An order for a worker of root, which no starter makes.
fn order(number: u64) -> Vec<u8> {
    let command = Command {
        program: "/bin/true".into(),
        arguments: Vec::new(),
        environment: Vec::new(),
        uid: 0,
        gid: 0,
        groups: Vec::new(),
        directory: "/".into(),
        label: None,
        name: "imap".into(),
        umask: 0o077,
        setuid: false,
        pam_session: false,
        files: None,
        refused: Vec::new(),
        only: None,
        errors: None,
    };
    let order = Request::Order(Box::new(Order {
        number,
        entry: Entry::Made,
        accepts: true,
        most: 1,
        total: None,
        accounts: 0,
        command,
    }));
    order.encode()
}

fn start() -> (Child, PacketSocket) {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let mut program = Program::new(env!("CARGO_BIN_EXE_usherd"));
    let program = program.arg("starter").stdin(theirs).stdout(Stdio::null());
    let starter = program.spawn().unwrap();
    (starter, PacketSocket::from_descriptor(ours))
}

#[test]
fn an_order_whose_descriptors_are_withheld_is_over() {
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root may run a starter");
        return;
    }
    let (mut starter, socket) = start();
    let ask = |request: &[u8]| {
        let null = File::open("/dev/null").unwrap();
        let descriptors = match Request::decode(request).unwrap() {
            Request::Order(_) => vec![null.as_fd(); 2],
            Request::End | Request::Ping => Vec::new(),
        };
        socket.send(request, &descriptors).unwrap();
        let answer = socket.receive(MAX_REQUEST).unwrap();
        let report = Report::decode(&answer.bytes).unwrap();
        (report.number, report.event)
    };
    // The starter is ready.
    assert_eq!(ask(&Request::Ping.encode()), (0, Event::Pong));
    let pid = Pid::from_child(&starter);
    let limit = |current: Option<u64>| {
        let limit = Rlimit {
            current,
            ..rustix::process::getrlimit(Resource::Nofile)
        };
        rustix::process::prlimit(Some(pid), Resource::Nofile, limit).unwrap();
    };
    let is_open = |number: &u64| {
        let descriptor = format!("/proc/{}/fd/{number}", starter.id());
        fs::symlink_metadata(descriptor).is_ok()
    };
    // The starter can receive no further descriptor.
    limit((0..).find(|number| !is_open(number)));
    assert_eq!(ask(&order(1)), (1, Event::Over));
    limit(rustix::process::getrlimit(Resource::Nofile).current);
    let (number, event) = ask(&order(2));
    assert!(
        number == 2 && matches!(event, Event::NotMade(_)),
        "{event:?}"
    );
    drop(socket);
    assert!(starter.wait().unwrap().success());
}
