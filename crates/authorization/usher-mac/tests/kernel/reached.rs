//! Every entry point is reached, by one act each: refused for one user, permitted for the twin.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Instant;

use usher_mac::{Answers, EntryPoint, Framework, Module, Settings};

use super::World;

/// Entry points that other tests reach.
pub(super) const ELSEWHERE: [EntryPoint; 18] = [
    EntryPoint::InodePermission,
    EntryPoint::InodeGetattr,
    EntryPoint::InodeUnlink,
    EntryPoint::InodeRename,
    EntryPoint::InodeRenameTo,
    EntryPoint::InodeSetattr,
    EntryPoint::BprmCheckSecurity,
    EntryPoint::TaskKill,
    EntryPoint::SocketBind,
    EntryPoint::SocketConnect,
    EntryPoint::RelabelProcess,
    EntryPoint::NewProgram,
    EntryPoint::RelabelFile,
    EntryPoint::NewFile,
    EntryPoint::Syscall,
    EntryPoint::FilePermission,
    EntryPoint::InterfaceReceive,
    EntryPoint::InterfaceSend,
];

/// A process of a user, with all capabilities, that acts when it is asked to.
pub(super) struct Reacher {
    child: Child,
    names: ChildStdin,
    results: Lines<BufReader<ChildStdout>>,
}

impl Reacher {
    pub(super) fn start(uid: u32, folder: &Path) -> Self {
        let mut child = super::python()
            .args(["-c", include_str!("../points.py"), &uid.to_string()])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let names = child.stdin.take().unwrap();
        let mut results = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(results.next().unwrap().unwrap(), "begun");
        Self {
            child,
            names,
            results,
        }
    }

    pub(super) fn act(&mut self, point: EntryPoint) -> String {
        writeln!(self.names, "{point}").unwrap();
        let result = self.results.next();
        result
            .unwrap_or_else(|| panic!("no act for {point}"))
            .unwrap()
    }

    pub(super) fn end(mut self) {
        drop(self.names);
        assert!(self.child.wait().unwrap().success());
    }
}

/// The result of a refused act: the error, where the kernel hands it on.
fn when_refused(point: EntryPoint) -> &'static str {
    match point {
        EntryPoint::FileReceive => "left out",
        EntryPoint::SocketDeliver => "dropped",
        EntryPoint::InterfaceTransmit | EntryPoint::Capable => "EPERM",
        EntryPoint::MsgQueueMsgrcv => "ENOMSG",
        EntryPoint::KernelModuleRequest => "EAFNOSUPPORT",
        _ => "ENOANO",
    }
}

/// The result of a permitted act. Two are permitted and have nothing to do.
pub(super) fn when_permitted(point: EntryPoint) -> &'static str {
    match point {
        EntryPoint::KernelReadFile => "ENOEXEC",
        EntryPoint::KernelModuleRequest => "EAFNOSUPPORT",
        _ => "ok",
    }
}

/// How often the first module has refused at an entry point.
pub(super) fn refusals(framework: &Framework, point: EntryPoint) -> u64 {
    let loaded = framework.modules().unwrap();
    let counted = loaded[0].refusals.iter();
    counted
        .filter(|(refused, _)| *refused == point)
        .map(|(_, count)| *count)
        .sum()
}

#[test]
fn each_entry_point_refuses_one_user_and_permits_the_twin() {
    let Some(mut world) = World::new("reached", 40) else {
        return;
    };
    let answers = |errors: Vec<(EntryPoint, i32)>| {
        Settings::Test(Answers {
            uid: 3000 + 2 * 40,
            errors,
        })
    };
    // For information: the verifier goes through every dispatcher, then through every check.
    let begun = Instant::now();
    Framework::probe().unwrap();
    println!(
        "`bsdextended` and its dispatchers were tried in {:?}",
        begun.elapsed()
    );
    let begun = Instant::now();
    world
        .framework()
        .load(&Module::with(answers(Vec::new())))
        .unwrap();
    println!(
        "`test` and all other dispatchers were loaded in {:?}",
        begun.elapsed()
    );
    let [mut user, mut twin] = [world.user, world.twin].map(|uid| {
        let folder = world.path(&uid.to_string());
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::chown(&folder, Some(uid), Some(uid)).unwrap();
        Reacher::start(uid, &folder)
    });
    for point in EntryPoint::all().filter(|point| !ELSEWHERE.contains(point)) {
        let framework = world.framework();
        let refusing = answers(vec![(point, libc::ENOANO)]);
        framework.configure("test", &refusing).unwrap();
        let before = refusals(framework, point);
        assert_eq!(user.act(point), when_refused(point), "{point} refused");
        let refused = refusals(framework, point);
        assert!(refused > before, "{point} was not asked about");
        assert_eq!(
            twin.act(point),
            when_permitted(point),
            "{point} of the twin"
        );
        assert_eq!(refusals(framework, point), refused, "{point} of the twin");
        framework.configure("test", &answers(Vec::new())).unwrap();
        assert_eq!(user.act(point), when_permitted(point), "{point} permitted");
    }
    user.end();
    twin.end();
}
