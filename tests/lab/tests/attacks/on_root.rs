//! Another root process of the server's host against Usher's own: its objects in the kernel, its
//! pins, its daemons. docs/threat-model.md lists what root can still do.

use crate::attackers::{hostile, knock, live_connection, process_of, says, served_as};
use crate::service::{Client, Result, fenced, start_service};
use usher_lab::{ALICE, BOB, Mail, PATIENCE, Role, Signal};

/// Counts the kernel's objects for which bpf(2) returns a descriptor, and those that it refuses.
const COUNT: &str = "
SYS_BPF = {'x86_64': 321, 'aarch64': 280}[platform.machine()]

def bpf(command, *numbers):
    attributes = (ctypes.c_uint32 * 32)(*numbers)
    result = library.syscall(SYS_BPF, command, attributes, ctypes.sizeof(attributes))
    if result == -1:
        raise OSError(ctypes.get_errno(), 'bpf')
    return result, attributes

def count(next, by_id):
    id, outcomes = 0, collections.Counter()
    while True:
        try:
            id = bpf(next, id)[1][1]
        except OSError as error:
            assert error.errno == errno.ENOENT, error
            return outcomes
        outcome = attempt(lambda: os.close(bpf(by_id, id)[0]))
        outcomes[outcome] += 1
        if outcome == 'EPERM':
            refused.append(id)

refused = []
";

fn keeper_inside(mail: &Mail) -> Result<u32> {
    let processes = mail.mailhost.processes()?;
    let keeper = processes
        .iter()
        .find(|process| process.command.contains("usherd keeper"));
    Ok(keeper.ok_or("no keeper")?.pid)
}

/// A command's error message.
fn refused(mail: &Mail, command: &[&str]) -> Result<String> {
    let output = mail.mailhost.command(command).run()?;
    assert!(!output.status.success(), "{command:?}: {output:?}");
    Ok(format!("{}{}", output.stdout, output.stderr))
}

/// Requires that the pins cannot be touched, and that other pins can.
fn pins_are_guarded(mail: &Mail) -> Result {
    for command in [
        &["ls", "/sys/fs/bpf/usher"][..],
        &["rm", "-r", "/sys/fs/bpf/usher"],
        &["rm", "/sys/fs/bpf/usher/ownership/settled"],
        &["mv", "/sys/fs/bpf/usher", "/sys/fs/bpf/gone"],
        &["chmod", "777", "/sys/fs/bpf/usher"],
        &["mkdir", "/sys/fs/bpf/usher/own"],
        &["umount", "/sys/fs/bpf"],
    ] {
        let said = refused(mail, command)?;
        // umount(8) has its own wording.
        let not_permitted = ["not permitted", "must be superuser"];
        assert!(
            not_permitted.iter().any(|words| said.contains(words)),
            "{command:?}: {said}"
        );
    }
    for command in [
        &["mkdir", "/sys/fs/bpf/other"][..],
        &["chmod", "700", "/sys/fs/bpf/other"],
        &["mv", "/sys/fs/bpf/other", "/sys/fs/bpf/another"],
        &["rmdir", "/sys/fs/bpf/another"],
        &["mkdir", "-p", "/run/other"],
        &["mount", "-t", "bpf", "bpf", "/run/other"],
        &["umount", "/run/other"],
    ] {
        mail.mailhost.run(command)?;
    }
    Ok(())
}

/// Requires that bpf(2) refuses root Usher's objects, and returns root's own.
fn objects_are_guarded(mail: &Mail) -> Result<String> {
    let script = format!(
        "{COUNT}
BPF_MAP_CREATE, ARRAY = 0, 2
own, _ = bpf(BPF_MAP_CREATE, ARRAY, 4, 4, 1)
maps, programs, links = count(12, 14), count(11, 13), count(31, 30)
tell(maps['EPERM'] >= 12, programs['EPERM'] >= 30, links['EPERM'] >= 30, maps['done'] > 0)
tell(refused[0])"
    );
    let mut root = process_of(mail, "root", &script)?;
    says(&mut root, &["True True True True"])?;
    Ok(root.read_past("\n", PATIENCE)?.trim_end().to_owned())
}

// Threat model: A117
#[test]
fn bpftool_shows_root_its_own_maps_and_none_of_ushers() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let map = objects_are_guarded(&mail)?;
    for command in [
        &["bpftool", "map", "dump", "id", &map][..],
        &["bpftool", "map", "show", "id", &map],
        &[
            "bpftool", "map", "update", "id", &map, "key", "0", "0", "0", "0", "value", "1",
        ],
    ] {
        let said = refused(&mail, command)?;
        assert!(said.contains("not permitted"), "{command:?}: {said}");
    }
    let pin = "/sys/fs/bpf/own";
    let create = "type array key 4 value 4 entries 1 name own";
    let words: Vec<&str> = ["bpftool", "map", "create", pin]
        .into_iter()
        .chain(create.split(' '))
        .collect();
    mail.mailhost.run(words)?;
    let dump = mail
        .mailhost
        .run(["bpftool", "map", "dump", "pinned", pin])?;
    assert!(
        dump.stdout.contains("\"key\": 0") || dump.stdout.contains("key: 00"),
        "{dump:?}"
    );
    mail.mailhost.run(["rm", pin])?;
    mail.mailhost.run(["usher", "who"])?;
    Ok(())
}

// Threat model: A117
#[test]
fn root_does_not_touch_the_pins_and_touches_others() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    pins_are_guarded(&mail)?;
    let _service = start_service(&mail, &["fork"])?;
    Client::connect(&mail, "alice")?.echo("the hive has swarmed")
}

/// The numbers of maps, programs and links that bpf(2) refuses root.
fn refused_objects(mail: &Mail) -> Result<[u32; 3]> {
    let script = format!(
        "{COUNT}
maps, programs, links = count(12, 14), count(11, 13), count(31, 30)
tell(maps['EPERM'], programs['EPERM'], links['EPERM'])"
    );
    let line = process_of(mail, "root", &script)?.read_past("\n", PATIENCE)?;
    let numbers: std::result::Result<Vec<u32>, _> =
        line.split_whitespace().map(str::parse).collect();
    Ok(numbers?.try_into().map_err(|_| line)?)
}

/// Requires that root cannot touch the protector's pins.
fn protectors_pins_are_guarded(mail: &Mail) -> Result {
    for command in [
        &["ls", "/sys/fs/bpf/usher_protector"][..],
        &["rm", "/sys/fs/bpf/usher_protector/state"],
        &["rm", "-r", "/sys/fs/bpf/usher_protector"],
        &["mv", "/sys/fs/bpf/usher_protector", "/sys/fs/bpf/gone"],
        &["chmod", "777", "/sys/fs/bpf/usher_protector"],
        &["mkdir", "/sys/fs/bpf/usher_protector/own"],
        &[
            "bpftool",
            "map",
            "show",
            "pinned",
            "/sys/fs/bpf/usher_protector/state",
        ],
    ] {
        let said = refused(mail, command)?;
        assert!(said.contains("not permitted"), "{command:?}: {said}");
    }
    Ok(())
}

// Threat model: P13
#[test]
fn root_does_not_touch_what_the_protector_has_in_force() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let host = &mail.mailhost;
    let without = refused_objects(&mail)?;
    let mut protector = host.start_daemon(Role::Protector)?;
    let policy = "/etc/usher/policy.d/governed.policy";
    host.write(
        policy,
        "application /usr/bin/curl { network 0.0.0.0/0 trusted; }\n",
    )?;
    host.run(["usher", "policy", "apply"])?;
    protectors_pins_are_guarded(&mail)?;
    let with = refused_objects(&mail)?;
    for (kind, (without, with)) in ["maps", "programs", "links"]
        .iter()
        .zip(without.iter().zip(with))
    {
        assert!(with > without + 5, "{kind}: {without}, {with}");
    }
    // Each policy is another table, which is guarded in place of the one before the last.
    let mut tables = Vec::new();
    for untrusted in ["10.0.0.0/8", "10.0.0.0/9", "10.0.0.0/10"] {
        let networks = format!("network {untrusted} untrusted; network 0.0.0.0/0 trusted;");
        host.write(
            policy,
            format!("application /usr/bin/curl {{ {networks} }}\n"),
        )?;
        host.run(["usher", "policy", "apply"])?;
        tables.push(refused_objects(&mail)?);
    }
    assert!(
        tables.windows(2).all(|pair| pair[0] == pair[1]),
        "{tables:?}"
    );
    // Without a protector, and with the next one, to which they are open.
    protector.crash()?;
    protectors_pins_are_guarded(&mail)?;
    protector.start()?;
    protectors_pins_are_guarded(&mail)?;
    let shown = host.run(["usher", "--json", "protection", "show"])?.stdout;
    assert!(shown.contains("/usr/bin/curl"), "{shown}");
    host.run(["rm", policy])?;
    host.run(["usher", "policy", "apply"])?;
    protector.stop()?;
    assert_eq!(refused_objects(&mail)?, without);
    Ok(())
}

// Threat model: A117
#[test]
fn root_can_trace_other_processes_but_no_daemon() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let script = "target = int(hear())
tell(attempt(trace, target), attempt(open_memory, target) in ('EPERM', 'EACCES'),
     attempt(take, target, 0))
other = os.fork()
if other == 0:
    signal.pause()
tell(attempt(trace, other), attempt(open_memory, other), attempt(take, other, 1))
os.kill(other, signal.SIGKILL)";
    let daemons: Vec<u32> = mail
        .mailhost
        .processes()?
        .iter()
        .filter(|process| process.command.contains("usherd "))
        .map(|process| process.pid)
        .collect();
    // The keeper, its starter, the verifier and the recorder.
    assert_eq!(daemons.len(), 4, "{daemons:?}");
    for daemon in daemons {
        let mut root = process_of(&mail, "root", script)?;
        root.write(format!("{daemon}\n"))?;
        says(&mut root, &["EPERM True EPERM", "done done done"])?;
    }
    mail.mailhost.run(["usher", "who"])?;
    Ok(())
}

// Threat model: A129
#[test]
fn a_second_keeper_takes_nothing_over_and_a_restarted_one_does() -> Result {
    let Some(mut mail) = fenced()? else {
        return Ok(());
    };
    let first = keeper_inside(&mail)?;
    let said = refused(&mail, &["usherd", "keeper"])?;
    assert!(!said.is_empty());
    assert_eq!(keeper_inside(&mail)?, first);
    let _service = start_service(&mail, &["fork"])?;
    Client::connect(&mail, "alice")?.echo("one keeper")?;
    mail.keeper.restart()?;
    assert_ne!(keeper_inside(&mail)?, first);
    Client::connect(&mail, "bob")?.echo("another one")
}

// Threat model: A130
#[test]
fn what_the_killed_keeper_guarded_stays_guarded() -> Result {
    let Some(mut mail) = fenced()? else {
        return Ok(());
    };
    let (mut alice, _alices, place) = live_connection(&mail)?;
    let mut bobs = knock(&mail, "bob")?;
    let mut service = hostile(
        &mail,
        "kept = reserve()
tell('reserved')
hear()
tell(take_user(2002), take_user(0), attempt(os.setresgid, 2002, 2002, 2002))
hear()
_, reservation, _ = reserve()
serve(settle(reservation)[1])",
    )?;
    says(&mut service, &["reserved"])?;
    mail.keeper.kill(Signal::KILL)?;
    mail.keeper.wait(PATIENCE)?;
    service.write("\n")?;
    says(&mut service, &["EPERM EPERM EPERM"])?;
    pins_are_guarded(&mail)?;
    objects_are_guarded(&mail)?;
    let mut root = process_of(
        &mail,
        "root",
        "target, connection, pipe = map(int, hear().split())
tell(attempt(take, target, connection), attempt(take, target, pipe))",
    )?;
    root.write(format!("{place}\n"))?;
    says(&mut root, &["EPERM done"])?;
    alice.write("without a keeper\n")?;
    assert_eq!(alice.read_past("\n", PATIENCE)?, "without a keeper\n");
    mail.keeper.start()?;
    service.write("\n")?;
    served_as(&mut bobs, BOB.mailhost_uid)
}

/// A library that leaves a file when it is loaded.
const LOADED: &str = "
#include <fcntl.h>
__attribute__((constructor)) static void begin(void) { creat(\"/run/loaded\", 0600); }
";

// Threat model: A126
#[test]
fn a_program_at_usherds_path_in_another_root_touches_nothing() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let host = &mail.mailhost;
    let exe = format!("/proc/{}/exe", keeper_inside(&mail)?);
    let usherd = host.run(["readlink", &exe])?.stdout.trim().to_owned();
    let folder = usherd.trim_end_matches("/usherd");
    for command in [
        &["mkdir", "-p", "/run/jail"][..],
        &["mount", "--rbind", "/", "/run/jail"],
        &["mount", "--make-rslave", "/run/jail"],
        &[
            "mount",
            "-t",
            "tmpfs",
            "tmpfs",
            &format!("/run/jail{folder}"),
        ],
        &["cp", "/usr/bin/ls", &format!("/run/jail{usherd}")],
    ] {
        host.run(command)?;
    }
    let list = |folder| ["chroot", "/run/jail", &usherd, folder].map(str::to_owned);
    let words = list("/sys/fs/bpf/usher");
    let said = refused(&mail, &words.each_ref().map(String::as_str))?;
    host.run(list("/sys/fs/bpf"))?;
    host.run(["umount", "-l", "/run/jail"])?;
    assert!(said.contains("not permitted"), "{said}");

    host.write("/var/lib/loaded.c", LOADED)?;
    host.run([
        "gcc",
        "-shared",
        "-fPIC",
        "-o",
        "/run/loaded.so",
        "/var/lib/loaded.c",
    ])?;
    for (program, is_loaded) in [("/usr/bin/true", true), (&usherd, false)] {
        host.run(["env", "LD_PRELOAD=/run/loaded.so", program, "--version"])?;
        let found = host.command(["rm", "/run/loaded"]).run()?.status.success();
        assert_eq!(found, is_loaded, "{program}");
    }
    host.run(["usher", "who"])?;
    Ok(())
}

// Threat model: A117
#[test]
fn root_sets_no_filter_on_a_users_listener_and_does_on_its_own() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "_, reservation, _ = reserve()
_, queue = settle(reservation)
allow_tracing()
tell(os.getpid(), queue)
hear()
serve(queue)",
    )?;
    let place = service.read_past("\n", PATIENCE)?.trim_end().to_owned();
    let mut root = process_of(
        &mail,
        "root",
        "target, queue = map(int, hear().split())
taken = system_call('pidfd_getfd', os.pidfd_open(target), queue, 0)
own = socket.create_server(('127.0.0.1', 0))
def attach_filter(file):
    SO_ATTACH_FILTER = 26
    program = filter_of_everything(0xffffffff)
    if library.setsockopt(file, socket.SOL_SOCKET, SO_ATTACH_FILTER, program, 16) == -1:
        raise OSError(ctypes.get_errno(), 'setsockopt')
tell(attempt(attach_filter, taken), attempt(attach_filter, own.fileno()))",
    )?;
    root.write(format!("{place}\n"))?;
    says(&mut root, &["EPERM done"])?;
    service.write("\n")?;
    served_as(&mut alice, ALICE.mailhost_uid)
}
