//! One user against another's announced port.

use crate::attack::Result;
use crate::programs::{connect, start};
use usher_lab::{Lab, PATIENCE, Running};

// Threat model: A40
#[test]
fn nobody_takes_over_an_announced_port() -> Result {
    let mail = Lab::mail()?;
    // alice has her connection announced, closes her socket and lives on.
    let alice = r#"
mine = tcp(socket.AF_INET)
reply, peer = ask(SIGNER, @connect@, mine)
port = mine.getsockname()[1]
if "@connects@" == "yes":
    mine.connect(("@server@", 143))
    tell("greeting", mine.makefile().readline().strip())
mine.close()
tell("port", port)
sys.stdin.readline()
"#
    .replace("@connect@", &connect()?)
    .replace("@server@", &mail.mailhost.ipv4().to_string());
    // bob tries to get her port until he has it.
    let bob = r#"
refusals = 0
deadline = time.monotonic() + 60
while True:
    try:
        mine = tcp(socket.AF_INET)
        mine.bind(("@client@", @port@))
        break
    except OSError as error:
        assert error.errno == errno.EADDRINUSE, error
        assert time.monotonic() < deadline
        if refusals == 0:
            tell("taken")
        refusals += 1
try:
    mine.connect(("@server@", 143))
    tell("connected", mine.makefile().readline())
except ConnectionRefusedError:
    tell("reset", refusals)
"#
    .replace("@server@", &mail.mailhost.ipv4().to_string())
    .replace("@client@", &mail.laptop.ipv4().to_string());

    let alice = |connects: &str| -> Result<(Running, String)> {
        let program = alice.replace("@connects@", connects);
        let mut alice = start(&mail.laptop, "alice", &program)?;
        let said = alice.read_past("port", PATIENCE)?;
        Ok((alice, said))
    };
    for ends in [true, false] {
        let (mut alice, said) = alice("no")?;
        let port = said.split_whitespace().last().ok_or("no port")?;
        let mut bob = start(&mail.laptop, "bob", &bob.replace("@port@", port))?;
        bob.read_past("taken", PATIENCE)?;
        if ends {
            alice.end()?;
        }
        // While alice lives the signer lets go when the announcement has expired.
        let said = bob.read_past("re", PATIENCE)?;
        assert!(said.starts_with("reset"), "alice ends: {ends}: {said}");
    }
    // The twin: alice herself.
    let (_alice, said) = alice("yes")?;
    assert!(said.contains("* PREAUTH"), "{said}");
    Ok(())
}
