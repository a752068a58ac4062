//! Other processes of users and root on the server, against a live connection and the processes
//! involved in it.

use crate::attackers::{hostile, knock, live_connection, process_of, says, served_as};
use crate::service::{Result, fenced};
use usher_lab::{ALICE, PATIENCE, Running};

fn still_there(alice: &mut Running) -> Result {
    alice.write("still there?\n")?;
    assert_eq!(alice.read_past("\n", PATIENCE)?, "still there?\n");
    Ok(())
}

/// A program that serves all users, and passes each connection on to the process that its client names.
const SHARED: &str = r#"
import socket, threading
listener = socket.socket(fileno=3)
listener.setblocking(True)
def serve(connection):
    for line in connection.makefile("r"):
        if line.startswith("receiver-"):
            to = socket.socket(socket.AF_UNIX)
            to.connect("\0" + line.strip())
            socket.send_fds(to, [b"."], [connection.fileno()])
        else:
            connection.sendall(line.encode())
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"#;

/// Takes one descriptor, writes to the connection in it, and tells whether it was withheld.
const RECEIVER: &str = "
line = socket.socket(socket.AF_UNIX)
line.bind(f'\\0receiver-{os.getuid()}')
line.listen()
tell('ready')
peer, _ = line.accept()
_, descriptors, flags, _ = socket.recv_fds(peer, 1, 1)
for descriptor in descriptors:
    os.write(descriptor, b'from another process of hers\\n')
tell(len(descriptors), bool(flags & socket.MSG_CTRUNC))";

/// Not even to the user's own.
// Threat model: A178
#[test]
fn a_shared_services_connection_is_passed_only_to_its_accounts_processes() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    mail.mailhost.add_account("notes", 3001)?;
    mail.mailhost.write("/var/lib/notes", SHARED)?;
    mail.add_policies(
        "notes",
        "service notes { program \"/usr/bin/python3\" \"/var/lib/notes\"; account notes; listen 7100; \
         style shared; users mail; hosts laptop; }\n",
        "client notes { users mail; service notes at mailhost port 7100; }\n",
    )?;
    let connect = ["usher", "connect", "mailhost:notes"];
    let mut alice = mail.laptop.command(connect).user("alice").spawn()?;
    still_there(&mut alice)?;
    for (user, uid, expected) in [
        ("bob", 2002, "0 True"),
        ("root", 0, "0 True"),
        ("alice", ALICE.mailhost_uid, "0 True"),
        ("notes", 3001, "1 False"),
    ] {
        let mut process = process_of(&mail, user, RECEIVER)?;
        says(&mut process, &["ready"])?;
        alice.write(format!("receiver-{uid}\n"))?;
        says(&mut process, &[expected])?;
    }
    assert_eq!(
        alice.read_past("\n", PATIENCE)?,
        "from another process of hers\n"
    );
    still_there(&mut alice)
}

// Threat model: A72
#[test]
fn a_connection_is_passed_only_to_its_users_processes() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "_, reservation, _ = reserve()
_, queue = settle(reservation)
connection = accept(queue)
greet(connection)
for _ in range(3):
    line = socket.socket(socket.AF_UNIX)
    line.connect('\\0' + hear())
    socket.send_fds(line, [b'.'], [connection.fileno()])
connection.sendall(connection.recv(4096))
hear()",
    )?;
    for (user, uid, expected) in [
        ("bob", 2002, "0 True"),
        ("root", 0, "0 True"),
        ("alice", ALICE.mailhost_uid, "1 False"),
    ] {
        let mut process = process_of(&mail, user, RECEIVER)?;
        says(&mut process, &["ready"])?;
        service.write(format!("receiver-{uid}\n"))?;
        says(&mut process, &[expected])?;
    }
    let _greeting = alice.read_past("\n", PATIENCE)?;
    assert_eq!(
        alice.read_past("\n", PATIENCE)?,
        "from another process of hers\n"
    );
    Ok(())
}

// Threat model: A75, A117
#[test]
fn root_cannot_take_a_connection_out_of_a_users_process() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let (mut alice, _service, place) = live_connection(&mail)?;
    let script = "target, connection, pipe = map(int, hear().split())
for file in (connection, pipe):
    tell(attempt(take, target, file), attempt(open_again, target, file))";
    let mut root = process_of(&mail, "root", script)?;
    root.write(format!("{place}\n"))?;
    says(&mut root, &["EPERM ENXIO", "done done"])?;
    let mut bob = process_of(&mail, "bob", script)?;
    bob.write(format!("{place}\n"))?;
    says(&mut bob, &["EPERM EACCES", "EPERM EACCES"])?;
    still_there(&mut alice)
}

// Threat model: A75, A121
#[test]
fn only_root_and_the_user_can_trace_a_users_process() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let (mut alice, _service, place) = live_connection(&mail)?;
    let script = "target = int(hear().split()[0])
tell(attempt(trace, target), attempt(open_memory, target))";
    for (user, expected) in [("bob", "EPERM EACCES"), ("root", "done done")] {
        let mut process = process_of(&mail, user, script)?;
        process.write(format!("{place}\n"))?;
        says(&mut process, &[expected])?;
    }
    still_there(&mut alice)
}

// Threat model: A105
#[test]
fn a_service_cannot_control_a_process_that_became_a_user() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "_, reservation, _ = reserve()
to_child, from_child = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.read(to_child[0], 1)
    _, queue = settle(reservation)
    os.write(from_child[1], b'.')
    os.read(to_child[0], 1)
    serve(queue)
    os._exit(0)
reach = lambda: tell(attempt(trace, child), attempt(open_memory, child), attempt(take, child, 1))
# The memory would stay open past the change: a service's processes open none.
reach()
os.write(to_child[1], b'.')
os.read(from_child[0], 1)
reach()
os.write(to_child[1], b'.')
hear()",
    )?;
    says(&mut service, &["done EPERM done", "EPERM EACCES EPERM"])?;
    served_as(&mut alice, ALICE.mailhost_uid)
}

// Threat model: A105
#[test]
fn a_traced_process_becomes_a_user_only_when_released() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "_, reservation, _ = reserve()
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
child = os.fork()
if child == 0:
    there.recv(1)
    keeper, reply = claim(reservation)
    uid, gid, groups = identity(reply)
    tell(attempt(take_groups, gid, groups))
    there.send(b'.')
    there.recv(1)
    take_groups(gid, groups)
    tell(take_user(uid))
    serve(keeper.ask(SETTLED).descriptors[0])
    os._exit(0)
assert library.ptrace(PTRACE_SEIZE, child, None, None) == 0
here.send(b'.')
here.recv(1)
assert library.ptrace(PTRACE_INTERRUPT, child, None, None) == 0
os.waitpid(child, 0x40000000)
assert library.ptrace(PTRACE_DETACH, child, None, None) == 0
here.send(b'.')
hear()",
    )?;
    says(&mut service, &["EPERM", "done"])?;
    served_as(&mut alice, ALICE.mailhost_uid)
}

// Threat model: A76
#[test]
fn another_user_takes_no_part_in_the_calls() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "_, reservation, _ = reserve()
tell(reservation.hex())
hear()
serve(settle(reservation)[1])",
    )?;
    let reservation = service.read_past("\n", PATIENCE)?;
    for user in ["bob", "alice", "root"] {
        let mut other = process_of(
            &mail,
            user,
            "tell(attach()[1].what, claim(bytes.fromhex(hear()))[1].what)",
        )?;
        other.write(&reservation)?;
        says(&mut other, &["not_this_account not_this_account"])?;
    }
    service.write("\n")?;
    served_as(&mut alice, ALICE.mailhost_uid)
}
