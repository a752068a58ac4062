//! A subverted service: processes of its account, with its capabilities, that speak to the keeper
//! themselves. After each refused attempt a permitted process does the same.

use crate::attackers::{HOSTILE, hostile, knock, says, served_as};
use crate::service::{Client, Result, fenced, start_service};
use usher_lab::{ALICE, BOB, PATIENCE, Running, Signal};

/// Requires that a well-behaved service serves the connection.
#[track_caller]
fn served_honestly(connection: &mut Running, user: &str) -> Result {
    let greeting = connection.read_past("\n", PATIENCE)?;
    assert!(
        greeting.contains(&format!(" {user} at calls ")),
        "{greeting}"
    );
    Ok(())
}

// Threat model: A99
#[test]
fn a_reservation_is_for_its_maker_and_the_makers_children_only() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut maker = hostile(
        &mail,
        "_, reservation, _ = reserve()
tell(reservation.hex())
hear()
in_child(lambda: serve(settle(reservation)[1]))",
    )?;
    let reservation = maker.read_past("\n", PATIENCE)?;
    let mut thief = hostile(&mail, "tell(claim(bytes.fromhex(hear()))[1].what)")?;
    thief.write(reservation)?;
    says(&mut thief, &["reservation_lapsed"])?;
    maker.write("\n")?;
    served_as(&mut alice, ALICE.mailhost_uid)
}

// Threat model: A99
#[test]
fn a_reservation_serves_its_makers_child_but_no_grandchild() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "_, reservation, _ = reserve()
in_child(lambda: in_child(lambda: tell(claim(reservation)[1].what)))
in_child(lambda: serve(settle(reservation)[1]))",
    )?;
    says(&mut service, &["reservation_lapsed"])?;
    served_as(&mut alice, ALICE.mailhost_uid)
}

// Threat model: A99
#[test]
fn a_guessed_reservation_is_refused() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "_, reservation, _ = reserve()
for guess in [bytes(16), os.urandom(16), reservation[:15] + bytes([reservation[15] ^ 1])]:
    tell(claim(guess)[1].what)
in_child(lambda: serve(settle(reservation)[1]))",
    )?;
    says(&mut service, &["reservation_lapsed"; 3])?;
    served_as(&mut alice, ALICE.mailhost_uid)
}

// Threat model: A99
#[test]
fn a_reservation_ends_with_its_maker() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut orphan = hostile(
        &mail,
        "_, reservation, _ = reserve()
maker = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == maker:
    time.sleep(0.001)
tell(claim(reservation)[1].what)",
    )?;
    says(&mut orphan, &["reservation_lapsed"])?;
    let _service = start_service(&mail, &["fork"])?;
    served_honestly(&mut alice, "alice")
}

// Threat model: A99
#[test]
fn a_reservation_is_used_once() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "_, reservation, _ = reserve()
def first():
    _, queue = settle(reservation)
    tell(claim(reservation)[1].what)
    serve(queue)
if os.fork() == 0:
    first()
    os._exit(0)
hear()
in_child(lambda: tell(claim(reservation)[1].what))",
    )?;
    says(&mut service, &["already_settled"])?;
    served_as(&mut alice, ALICE.mailhost_uid)?;
    service.write("\n")?;
    says(&mut service, &["reservation_lapsed"])
}

// Threat model: A115
#[test]
fn who_reserves_and_does_not_serve_keeps_nobody_else_waiting() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut hoarder = hostile(
        &mail,
        "kept = reserve()
tell('reserved', kept[2])
hear()",
    )?;
    says(&mut hoarder, &[&format!("reserved {}", ALICE.mailhost_uid)])?;
    let _service = start_service(&mail, &["fork"])?;
    Client::connect(&mail, "bob")?.echo("forty lanterns")?;
    hoarder.end()?;
    served_honestly(&mut alice, "alice")
}

// Threat model: A102
#[test]
fn a_process_with_threads_does_not_settle_and_does_without_them() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "_, reservation, _ = reserve()
def with_a_thread(body):
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    tell(body())
    stop.set()
    thread.join()
    only_thread()
with_a_thread(lambda: claim(reservation)[1].what)
keeper, reply = claim(reservation)
uid, gid, groups = identity(reply)
take_groups(gid, groups)
with_a_thread(lambda: take_user(uid))
tell(take_user(uid))
serve(keeper.ask(SETTLED).descriptors[0])",
    )?;
    says(&mut service, &["process_shared", "EPERM", "done"])?;
    served_as(&mut alice, ALICE.mailhost_uid)
}

// Threat model: A102
#[test]
fn threads_that_race_for_the_user_leave_one_user_or_none() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    // Threads come and go while the process tries to settle: as long as one exists it is refused.
    // A slow machine makes fewer attempts, because the keeper waits 10 s for it to settle.
    let mut service = hostile(
        &mail,
        "_, reservation, _ = reserve()
keeper, reply = claim(reservation)
uid, gid, groups = identity(reply)
take_groups(gid, groups)
done = threading.Event()
def come_and_go():
    while not done.is_set():
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
racer = threading.Thread(target=come_and_go)
racer.start()
enough, outcomes = time.monotonic() + 4, set()
for _ in range(200):
    outcomes.add(take_user(uid))
    if time.monotonic() > enough:
        break
users = ids()
done.set()
racer.join()
only_thread()
tell(outcomes, *users)
tell(take_user(uid))
serve(keeper.ask(SETTLED).descriptors[0])",
    )?;
    says(&mut service, &["{'EPERM'} 900 900 900 900", "done"])?;
    served_as(&mut alice, ALICE.mailhost_uid)
}

// Threat model: A101
#[test]
fn a_false_settled_gets_no_queue_and_loses_the_grant() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "_, reservation, uid = reserve()
keeper, reply = claim(reservation)
_, gid, groups = identity(reply)
tell(keeper.ask(SETTLED).what)
tell(attempt(take_groups, gid, groups), take_user(uid))
_, reservation, uid = reserve()
in_child(lambda: serve(settle(reservation)[1]))",
    )?;
    says(&mut service, &["not_this_account", "EPERM EPERM"])?;
    served_as(&mut alice, ALICE.mailhost_uid)
}

// Threat model: A97
#[test]
fn a_grant_is_for_exactly_what_it_says() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "_, reservation, _ = reserve()
keeper, reply = claim(reservation)
uid, gid, groups = identity(reply)
tell(take_user(0), take_user(2002), take_user(uid))
tell(attempt(take_groups, 0, groups), attempt(take_groups, gid, [0]))
take_groups(gid, groups)
for parts in [(uid, 900, 900), (900, uid, 900), (uid, uid, 900)]:
    tell(attempt(system_call, 'setresuid', *parts))
library.setfsuid(uid)
tell(ids()[3])
tell(take_user(uid))
serve(keeper.ask(SETTLED).descriptors[0])",
    )?;
    says(
        &mut service,
        &[
            "EPERM EPERM EPERM",
            "EPERM EPERM",
            "EPERM",
            "EPERM",
            "EPERM",
            "900",
            "done",
        ],
    )?;
    served_as(&mut alice, ALICE.mailhost_uid)
}

// Threat model: A109
#[test]
fn a_process_that_has_become_a_user_becomes_nothing_else() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let (mut alice, mut bob) = (knock(&mail, "alice")?, knock(&mail, "bob")?);
    // The capabilities are still in its sets: it has not given them up.
    let mut service = hostile(
        &mail,
        "a_user, another = reserve(), reserve()
def become_one_and_try():
    _, queue = settle(a_user[1])
    tell(claim(another[1])[1].what, attach()[1].what)
    other = ({2001, 2002} - {os.getuid()}).pop()
    tell(*[take_user(uid) for uid in (0, 900, other)], attempt(os.setgroups, [0]))
    tell(attempt(os.setresgid, 900, 900, 900), attempt(os.chroot, '/'))
    CLONE_NEWUSER = 0x10000000
    library.unshare(CLONE_NEWUSER)
    tell(errno.errorcode[ctypes.get_errno()])
    tell(open('/proc/self/status').read().split('CapPrm:\t')[1].split()[0] != '0' * 16)
    serve(queue)
if os.fork() == 0:
    become_one_and_try()
    os._exit(0)
hear()
in_child(lambda: serve(settle(another[1])[1]))",
    )?;
    says(
        &mut service,
        &[
            "already_settled not_this_account",
            "EPERM EPERM EPERM EPERM",
            "EPERM EPERM",
            "EPERM",
            "True",
        ],
    )?;
    service.write("\n")?;
    served_as(&mut alice, ALICE.mailhost_uid)?;
    served_as(&mut bob, BOB.mailhost_uid)
}

// Threat model: A101
#[test]
fn a_program_executed_after_settling_is_still_the_user() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    mail.mailhost
        .write("/var/lib/next.py", format!("{HOSTILE}\n{NEXT_PROGRAM}"))?;
    let mut service = hostile(
        &mail,
        "_, reservation, _ = reserve()
_, queue = settle(reservation)
os.set_inheritable(queue, True)
os.execv('/usr/bin/python3', ['python3', '/var/lib/next.py', str(queue)])",
    )?;
    says(&mut service, &["EPERM EPERM"])?;
    served_as(&mut alice, ALICE.mailhost_uid)
}

const NEXT_PROGRAM: &str = "
tell(take_user(900), take_user(0))
serve(int(sys.argv[1]))";

// Threat model: A113
#[test]
fn no_queue_follows_a_keepers_death_between_grant_and_settling() -> Result {
    let Some(mut mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "_, reservation, _ = reserve()
keeper, reply = claim(reservation)
uid, gid, groups = identity(reply)
tell('granted')
hear()
take_groups(gid, groups)
tell(take_user(2002), take_user(0), take_user(uid), take_user(900))
tell(keeper.ask(SETTLED).what)
hear()
tell(claim(reservation)[1].what)
hear()",
    )?;
    says(&mut service, &["granted"])?;
    mail.keeper.kill(Signal::KILL)?;
    mail.keeper.wait(PATIENCE)?;
    service.write("\n")?;
    says(&mut service, &["EPERM EPERM done EPERM", "closed"])?;
    mail.keeper.start()?;
    service.write("\n")?;
    says(&mut service, &["already_settled"])?;
    // It is alice's process as long as it lives.
    service.write("\n")?;
    let _service = start_service(&mail, &["fork"])?;
    served_honestly(&mut alice, "alice")
}

// Threat model: A113
#[test]
fn the_next_keeper_kills_holders_of_old_grants() -> Result {
    let Some(mut mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "_, reservation, _ = reserve()
def be_granted():
    conversation, reply = claim(reservation)
    tell(reply.what)
    signal.pause()
child = os.fork()
if child == 0:
    be_granted()
_, status = os.waitpid(child, 0)
tell(os.WTERMSIG(status) == signal.SIGKILL)
_, reservation, _ = reserve()
in_child(lambda: serve(settle(reservation)[1]))",
    )?;
    says(&mut service, &["identity"])?;
    mail.keeper.kill(Signal::KILL)?;
    mail.keeper.wait(PATIENCE)?;
    mail.keeper.start()?;
    says(&mut service, &["True"])?;
    served_as(&mut alice, ALICE.mailhost_uid)
}

// Threat model: A95
#[test]
fn a_fork_bomb_stops_at_the_policys_limit() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "def fork_without_end(queue):
    count = 1
    try:
        while os.fork():
            count += 1
    except OSError as error:
        tell(errno.errorcode[error.errno], count)
        serve(queue)
    signal.pause()
_, reservation, uid = reserve()
if os.fork() == 0:
    fork_without_end(settle(reservation)[1])
hear()
_, reservation, uid = reserve()
in_child(lambda: serve(settle(reservation)[1]))",
    )?;
    says(&mut service, &["EAGAIN 40"])?;
    served_as(&mut alice, ALICE.mailhost_uid)?;
    let mut bob = knock(&mail, "bob")?;
    service.write("\n")?;
    served_as(&mut bob, BOB.mailhost_uid)
}

// Threat model: A101
#[test]
fn a_child_forked_before_settling_must_become_the_user_or_die() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "_, reservation, _ = reserve()
def hide_a_child():
    conversation, reply = claim(reservation)
    hidden = os.fork()
    if hidden == 0:
        signal.pause()
    conversation.socket.close()
    _, status = os.waitpid(hidden, 0)
    tell(reply.what, os.WTERMSIG(status) == signal.SIGKILL)
in_child(hide_a_child)
_, reservation, _ = reserve()
in_child(lambda: serve(settle(reservation)[1]))",
    )?;
    says(&mut service, &["identity True"])?;
    served_as(&mut alice, ALICE.mailhost_uid)
}

// Threat model: A105
#[test]
fn a_process_prepared_by_the_service_becomes_no_user() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "def prepared(gives_up):
    keeper, reply = claim(reservation)
    uid, gid, groups = identity(reply)
    listener = watch_own_calls()
    tell(attempt(take_groups, gid, groups))
    if gives_up:
        # The kernel notes the reason with the process: the keeper has read it when it answers.
        tell(keeper.ask(PRE_ACCEPT).what)
        return
    os.close(listener)
    take_groups(gid, groups)
    tell(take_user(uid))
    serve(keeper.ask(SETTLED).descriptors[0])
_, reservation, _ = reserve()
in_child(lambda: prepared(True))
_, reservation, _ = reserve()
in_child(lambda: prepared(False))",
    )?;
    says(&mut service, &["EBUSY", "malformed", "EBUSY", "done"])?;
    served_as(&mut alice, ALICE.mailhost_uid)?;
    let reason = "did not become its user: a seccomp listener";
    assert!(mail.keeper.wait_log(reason, PATIENCE)?);
    Ok(())
}
