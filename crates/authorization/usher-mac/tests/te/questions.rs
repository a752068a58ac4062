//! The questions of a case, each with the model's answer.

use usher_mac::EntryPoint;
use usher_mac_blocks::te::Class;

use crate::PROCESS;
use crate::cases::{Case, Element, words};
use crate::model::Model;

/// A question, and the model's answer with the last element.
pub struct Question {
    pub point: EntryPoint,
    pub request: Vec<u8>,
    pub expected: (i32, Element),
}

/// The file as the framework hands it on, with what follows it.
pub fn file(case: &Case, rest: &[u32]) -> Vec<u8> {
    let special = case.special.0 << 20 | case.special.1;
    let mut bytes = words(&[7, 0, 9, 0, 0, case.kind << 12 | 0o777, special, 0]);
    bytes.extend(words(rest));
    bytes
}

/// Questions about files.
fn about_files(model: &mut Model<'_>, case: &Case) -> Vec<(EntryPoint, Vec<u8>, i32)> {
    use EntryPoint::*;
    let access = file(case, &[case.access, 0]);
    let wanted = case.wanted();
    let mapping = case.wanted_of_mapping();
    let is_device = case.class() == Class::Device;
    let mut changes = Vec::new();
    if case.argument & 8 != 0 {
        changes.push("write");
    }
    if case.argument & !8 != 0 {
        changes.push("setattr");
    }
    let becomes_executable = case.kind != 0 && case.protection & 4 != 0 && case.argument & 4 == 0;
    let mut out = vec![
        (
            InodePermission,
            access.clone(),
            model.may_file(case, &wanted),
        ),
        (FileOpen, access.clone(), model.may_file(case, &wanted)),
        (FilePermission, access, model.uses_open(case)),
        (
            MmapFile,
            file(case, &[case.protection, 0, case.permitted, 0]),
            model.may_file(case, &mapping),
        ),
        (
            FileMprotect,
            file(case, &[case.protection, case.argument]),
            if becomes_executable {
                model.may(
                    &case.own,
                    &case.own,
                    "unconfined",
                    Class::Process,
                    &["execmem"],
                )
            } else {
                0
            },
        ),
        (
            InodeGetattr,
            file(case, &[]),
            model.may_file(case, &["getattr"]),
        ),
        (
            InodeSetattr,
            file(case, &[case.argument]),
            model.may_file(case, &changes),
        ),
        (
            InodeSetAcl,
            file(case, &[]),
            model.may_file(case, &["setattr"]),
        ),
        (
            InodeRemoveAcl,
            file(case, &[]),
            model.may_file(case, &["setattr"]),
        ),
        (InodeCreate, file(case, &[]), model.makes(case, Class::File)),
        (
            InodeMkdir,
            file(case, &[]),
            model.makes(case, Class::Directory),
        ),
        (
            InodeSymlink,
            file(case, &[]),
            model.makes(case, Class::Link),
        ),
        (
            InodeMknod,
            file(case, &[case.kind << 12, 0]),
            model.makes(case, case.class()),
        ),
        (
            InodeRmdir,
            file(case, &[]),
            model.changes_name(case, "remove_name", "unlink"),
        ),
        (
            InodeLink,
            file(case, &[]),
            model.changes_name(case, "add_name", "link"),
        ),
        (
            InodeUnlink,
            file(case, &[]),
            model.changes_name(case, "remove_name", "unlink"),
        ),
        (
            InodeRename,
            file(case, &[]),
            model.changes_name(case, "remove_name", "rename"),
        ),
        (
            BprmCheckSecurity,
            file(case, &[]),
            model.may(
                &case.own,
                &case.object,
                "untyped",
                Class::File,
                &["execute"],
            ),
        ),
    ];
    for point in [FileIoctl, FileIoctlCompat] {
        let answer = if is_device {
            model.may_file(case, &["ioctl"])
        } else {
            0
        };
        out.push((point, file(case, &[1, 0]), answer));
    }
    let replaces = case.access & 1;
    let mut replacing = file(case, &[]);
    replacing.extend(file(case, &[replaces, 0]));
    let replaced = match replaces {
        0 => model.in_directory(case, &["add_name"]),
        _ => match model.in_directory(case, &["add_name", "remove_name"]) {
            0 => model.may_file(case, &["unlink"]),
            refused => refused,
        },
    };
    out.push((InodeRenameTo, replacing, replaced));
    out
}

/// Questions about processes, sockets and IPC.
fn about_others(model: &mut Model<'_>, case: &Case) -> Vec<(EntryPoint, Vec<u8>, i32)> {
    use EntryPoint::*;
    let process = if case.is_own_process { PROCESS } else { 5 };
    let signal = words(&[0, 0, process, 9]);
    let access = words(&[0, 0, 0, 0, process, case.argument]);
    let mut on = |class, wanted: &[&'static str]| {
        model.may(&case.own, &case.object, "unconfined", class, wanted)
    };
    let mut to_process = |wanted: &'static str| {
        if case.is_own_process {
            0
        } else {
            on(Class::Process, &[wanted])
        }
    };
    let traced = if case.argument & 2 == 0 {
        "read"
    } else {
        "ptrace"
    };
    let mut out = vec![
        (TaskKill, signal, to_process("signal")),
        (TaskSetscheduler, access.clone(), to_process("setsched")),
        (TaskSetnice, access.clone(), to_process("setsched")),
        (PtraceAccessCheck, access.clone(), to_process(traced)),
    ];
    let limits = if case.argument & 2 == 0 {
        0
    } else {
        on(Class::Process, &["setsched"])
    };
    out.push((TaskPrlimit, access.clone(), limits));
    for (point, wanted) in [
        (SocketSendmsg, "write"),
        (SocketRecvmsg, "read"),
        (SocketGetsockopt, "read"),
        (SocketBind, "bind"),
        (SocketListen, "listen"),
        (SocketAccept, "accept"),
        (SocketConnect, "connect"),
        (UnixStreamConnect, "connect"),
        (UnixMaySend, "write"),
    ] {
        out.push((point, Vec::new(), on(Class::Socket, &[wanted])));
    }
    let is_network = case.object == Element::Nothing || case.interface == 0;
    let packet = words(&[2, 1, 0, 1000, case.interface, 0]);
    let delivered = if is_network {
        0
    } else {
        on(Class::Socket, &["read"])
    };
    let left = if is_network {
        0
    } else {
        on(Class::Socket, &["write"])
    };
    out.push((SocketDeliver, packet.clone(), delivered));
    // The hook of this entry point knows only 0 and 1.
    out.push((InterfaceTransmit, packet, i32::from(left != 0)));
    let ipc = words(&[1, 2, 0, 0, 0, 0, 0o600, case.argument]);
    let read_only = words(&[1, 2, 0, 0, 0, 0, 0o600, 0o10000]);
    let mut controls = |changing: &[u32], writing: &[u32]| {
        let wanted = match case.argument {
            command if writing.contains(&command) => "write",
            command if changing.contains(&command) => "setattr",
            _ => "getattr",
        };
        on(Class::Ipc, &[wanted])
    };
    let controlled = [
        (MsgQueueMsgctl, ipc.clone(), controls(&[0, 1], &[])),
        (SemSemctl, ipc.clone(), controls(&[0, 1], &[16, 17])),
        (ShmShmctl, ipc.clone(), controls(&[0, 1, 11, 12], &[])),
    ];
    out.extend(controlled);
    let stirs: &[&str] = if case.argument == 0 {
        &["read"]
    } else {
        &["read", "write"]
    };
    let used = [
        (MsgQueueMsgsnd, ipc.clone(), on(Class::Ipc, &["write"])),
        (MsgQueueMsgrcv, ipc.clone(), on(Class::Ipc, &["read"])),
        (SemSemop, ipc.clone(), on(Class::Ipc, stirs)),
        (ShmShmat, ipc, on(Class::Ipc, &["read", "write"])),
        (ShmShmat, read_only, on(Class::Ipc, &["read"])),
    ];
    out.extend(used);
    let family = 1 + case.access % 2;
    let made = if family == 1 { "create" } else { "network" };
    let made = model.may(&case.own, &case.own, "unconfined", Class::Socket, &[made]);
    out.push((SocketCreate, words(&[family]), made));
    // The other process is to trace this one.
    let traced = model.may(
        &case.object,
        &case.own,
        "unconfined",
        Class::Process,
        &["ptrace"],
    );
    out.push((PtraceTraceme, access, traced));
    for is_initial in [false, true] {
        let request = words(&[case.capability, is_initial.into(), 0, 0]);
        out.push((Capable, request, model.uses_capability(case, is_initial)));
    }
    out.push((RelabelProcess, Vec::new(), model.relabels_process(case)));
    out.push((RelabelFile, Vec::new(), model.relabels_file(case)));
    out
}

/// All questions of a case.
pub fn questions(model: &mut Model<'_>, case: &Case) -> Vec<Question> {
    let mut all = about_files(model, case);
    all.extend(about_others(model, case));
    let all = all.into_iter().map(|(point, request, answer)| Question {
        point,
        request,
        expected: (answer, case.last.clone()),
    });
    let mut all: Vec<Question> = all.collect();
    all.push(Question {
        point: EntryPoint::NewProgram,
        request: file(case, &[]),
        expected: model.new_program(case),
    });
    all.push(Question {
        point: EntryPoint::NewFile,
        request: file(case, &[case.kind << 12, 0]),
        expected: (0, model.of_new_file(case)),
    });
    all
}
