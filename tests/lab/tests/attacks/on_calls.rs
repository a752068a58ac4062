//! Requests of a service's process to the keeper that are wrong, too many, or about others.

use std::net::SocketAddr;

use crate::attackers::{hostile, knock, live_connection, process_of, says, served_as};
use crate::service::{Client, Result, as_account, fenced, reads_mail, start_service};
use usher_base::ConnectionTuple;
use usher_lab::{ALICE, BOB, Mail, PATIENCE};

/// A connection with unsent bytes that lingers when it is closed.
const LINGERING: &str = "
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
def close(near):
    # Where the keeper was quicker, this one is the last, and it lingers here.
    threading.Thread(target=near.close, daemon=True).start()
def lingering():
    listener = socket.create_server(('127.0.0.1', 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    listener.close()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    near.setblocking(False)
    try:
        while True:
            near.send(bytes(65536))
    except BlockingIOError:
        pass
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 600))
    return near, far
";

const SHARED_MEMORY: &str = include_str!("../../programs/shared_memory.c");

/// The endpoints of the user's established connection to port 7000, in the form of a packet.
fn connection_of(mail: &Mail, user: &str) -> Result<String> {
    let who = mail.mailhost.run(["usher", "who"])?.stdout;
    let found = who.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            [whose, "calls", client, server, "established", ..] if whose == user => Some((
                client.parse::<SocketAddr>().ok()?,
                server.parse::<SocketAddr>().ok()?,
            )),
            _ => None,
        }
    });
    let (client, server) = found.ok_or_else(|| format!("no connection of {user}:\n{who}"))?;
    let packet = ConnectionTuple::new(client, server)?.encode();
    Ok(packet.iter().map(|byte| format!("{byte:02x}")).collect())
}

// Threat model: A76
#[test]
fn a_connection_is_told_of_to_its_user_and_root_only() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let _service = start_service(&mail, &["fork"])?;
    let _alice = Client::connect(&mail, "alice")?;
    let _bob = Client::connect(&mail, "bob")?;
    let (alices, bobs) = (connection_of(&mail, "alice")?, connection_of(&mail, "bob")?);
    let script = format!(
        "for connection in ('{alices}', '{bobs}'):
    tell(Keeper().ask(INFO, bytes.fromhex(connection)).what)"
    );
    let own_account = &mut hostile(&mail, &script)?;
    says(own_account, &["foreign_connection"; 2])?;
    for (user, expected) in [
        ("alice", ["connection", "foreign_connection"]),
        ("bob", ["foreign_connection", "connection"]),
        ("root", ["connection", "connection"]),
    ] {
        says(&mut process_of(&mail, user, &script)?, &expected)?;
    }
    Ok(())
}

// Threat model: A116
#[test]
fn an_invalid_request_does_not_stop_the_next_conversation() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    let mut service = hostile(
        &mail,
        "for packet in [bytes([VERSION]), bytes([VERSION, 0]), bytes([VERSION, 99]), bytes([9, 1, 0, 7]), bytes([VERSION, 1, 0, 0]),
               bytes([VERSION, SETTLED]), bytes([VERSION, PRE_ACCEPT]), bytes([VERSION, ACCEPTED]),
               bytes([VERSION, SET_NET_USER]) + bytes(15), bytes([VERSION, INFO]) + bytes(36), bytes(641),
               bytes(100000), os.urandom(600)]:
    reply = Keeper().say(packet)
    assert reply.what in ('malformed', 'truncated', 'unknown_version', 'oversized'), (packet, reply)
keeper, _ = attach()
tell(keeper.say(bytes([VERSION, PRE_ACCEPT]), 0).what)
keeper, _ = attach()
tell(keeper.ask(ATTACH, struct.pack('>H', 7000)).what)
_, reservation, _ = reserve()
keeper, _ = claim(reservation)
tell(keeper.ask(PRE_ACCEPT).what)
_, reservation, _ = reserve()
in_child(lambda: serve(settle(reservation)[1]))",
    )?;
    says(&mut service, &["malformed"; 3])?;
    served_as(&mut alice, ALICE.mailhost_uid)
}

// Threat model: A116
#[test]
fn descriptors_that_take_long_to_close_keep_no_service_waiting() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut alice = knock(&mail, "alice")?;
    // Each descriptor is the last one of a connection with unsent bytes that lingers.
    let mut service = hostile(
        &mail,
        &format!(
            "{LINGERING}
kept = []
for _ in range(64):
    near, far = lingering()
    kept.append(far)
    keeper = Keeper()
    packet = bytes([VERSION, ATTACH]) + struct.pack('>H', 7000)
    socket.send_fds(keeper.socket, [packet], [near.fileno()])
    close(near)
    keeper.socket.close()
tell('sent')
_, reservation, _ = reserve()
in_child(lambda: serve(settle(reservation)[1]))"
        ),
    )?;
    says(&mut service, &["sent"])?;
    served_as(&mut alice, ALICE.mailhost_uid)
}

// Threat model: A81
#[test]
fn slow_closing_of_one_users_connections_delays_no_other_user() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    // More than the runtime's threads, from a user whom the policy permits nothing.
    let mut carol = process_of(
        &mail,
        "carol",
        &format!(
            "{LINGERING}
kept = []
for _ in range(600):
    near, far = lingering()
    keeper = Keeper()
    socket.send_fds(keeper.socket, [bytes([VERSION, INFO]) + bytes(36)], [near.fileno()])
    close(near)
    kept.append((keeper, far))
    keeper.socket.shutdown(socket.SHUT_WR)
tell('sent')
hear()"
        ),
    )?;
    says(&mut carol, &["sent"])?;
    reads_mail(&mail, "bob")?;
    let _service = start_service(&mail, &["fork"])?;
    let alice = Client::connect(&mail, "alice")?;
    assert!(alice.greeting.contains("alice"));
    Ok(())
}

// Threat model: A116
#[test]
fn an_account_with_all_its_places_taken_delays_only_itself() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let (mut alice, _service, _) = live_connection(&mail)?;
    let mut flood = hostile(
        &mail,
        "_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
def fill():
    kept = []
    while True:
        keeper, attached = attach()
        if attached.what != 'attached':
            return kept, attached.what
        # The keeper closes attached connections that ask for nothing.
        keeper.socket.send(bytes([VERSION, PRE_ACCEPT]))
        kept.append(keeper)
kept, outcome = fill()
tell(outcome, len(kept) <= 1024)
hear()
for keeper in kept:
    keeper.socket.close()
kept.clear()
while (again := attach())[1].what == 'overloaded':
    time.sleep(0.01)
tell(again[1].what)",
    )?;
    says(&mut flood, &["overloaded True"])?;
    // Another account gets an answer, and so does a process that asks about its own connection.
    let connection = connection_of(&mail, "alice")?;
    let ask = format!("tell(Keeper().ask(INFO, bytes.fromhex('{connection}')).what)");
    says(&mut process_of(&mail, "alice", &ask)?, &["connection"])?;
    reads_mail(&mail, "bob")?;
    alice.write("still there?\n")?;
    assert_eq!(alice.read_past("\n", PATIENCE)?, "still there?\n");
    flood.write("\n")?;
    says(&mut flood, &["attached"])
}

// Threat model: A102
#[test]
fn only_a_child_with_its_own_memory_becomes_a_user() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    mail.mailhost
        .compile_c(SHARED_MEMORY, "/var/lib/shared_memory")?;
    let mut bob = knock(&mail, "bob")?;
    let mut service = as_account(&mail, &["/var/lib/shared_memory"])?;
    says(&mut service, &["refused"])?;
    served_as(&mut bob, BOB.mailhost_uid)
}
