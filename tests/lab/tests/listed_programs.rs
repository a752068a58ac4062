//! `programs` with a list: which programs of a user are authenticated, and which are not.
#![forbid(unsafe_code)]

mod greeter;

use greeter::*;
use usher_lab::{ALICE, BOB, Command, Mail, Role};

/// The folder for programs of the tests.
const FOLDER: &str = "/var/lib/programs";
const USHER: &str = "/run/lab/bin/usher";

/// Connects to ADDRESS and prints what it is greeted with, or the error.
const CLIENT: &str = "
import errno, socket, sys
try:
    connection = socket.create_connection((sys.argv[1], 7000))
    print(connection.makefile().readline(), end='')
except OSError as error:
    print(errno.errorcode[error.errno])
";
const REFUSED: &str = "ECONNREFUSED\n";
/// CURLE_COULDNT_CONNECT.
const NOT_CONNECTED: i32 = 7;

/// The greeter, and curl in a folder of the tests, the only program that may.
fn topology_of_curl() -> Result<Mail> {
    let mail = topology()?;
    let laptop = &mail.laptop;
    laptop.run(["mkdir", "-p", FOLDER])?;
    laptop.run(["cp", "/usr/bin/curl", &in_folder("curl")])?;
    laptop.write("/var/lib/client.py", CLIENT)?;
    list(&mail, &[&in_folder("curl")])?;
    Ok(mail)
}

fn in_folder(name: &str) -> String {
    format!("{FOLDER}/{name}")
}

/// Puts in force that these programs may and no others.
fn list(mail: &Mail, programs: &[&str]) -> Result {
    let quoted: Vec<String> = programs.iter().map(|path| format!("\"{path}\"")).collect();
    apply(mail, &format!("programs {};", quoted.join(", ")))
}

fn apply(mail: &Mail, programs: &str) -> Result {
    mail.laptop.write(
        "/etc/usher/policy.d/greeter.policy",
        format!(
            "client greeter {{ users mail; service greeter at mailhost port 7000; {programs} }}\n"
        ),
    )?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    Ok(())
}

/// curl, or a program like it, to the greeter's own address.
fn curl(mail: &Mail, user: &str, path: &str) -> Command {
    let url = format!("telnet://{}:7000", mail.mailhost.ipv4());
    mail.laptop
        .command([path, "--silent", "--max-time", "50", &url])
        .user(user)
}

fn greeted(command: &Command, uid: u32) -> Result {
    let output = command.run()?;
    assert_eq!(output.stdout, format!("{uid}\n"), "{command:?}: {output:?}");
    Ok(())
}

fn not_connected(command: &Command) -> Result {
    let output = command.run()?;
    let code = output.status.code();
    assert_eq!(
        (code, output.stdout.as_str()),
        (Some(NOT_CONNECTED), ""),
        "{output:?}"
    );
    Ok(())
}

/// Python, which no list of these tests names.
fn python(mail: &Mail, user: &str) -> Command {
    let address = mail.mailhost.ipv4().to_string();
    mail.laptop
        .command(["python3", "/var/lib/client.py", &address])
        .user(user)
}

fn refused(command: &Command) -> Result {
    assert_eq!(command.run()?.stdout, REFUSED);
    Ok(())
}

// Threat model: A45
#[test]
fn only_listed_programs_of_a_user_are_authenticated() -> Result {
    let mail = topology_of_curl()?;
    let path = in_folder("curl");
    // Held and announced, then with tokens.
    for (user, uid) in [("alice", ALICE.mailhost_uid), ("bob", BOB.mailhost_uid)] {
        refused(&python(&mail, user))?;
        greeted(&curl(&mail, user, &path), uid)?;
    }
    has_ticket(&mail, 2)?;
    // More when a SYN was sent again before it was decided about.
    let held = mail.laptop.number(Role::Signer, "plain_held")?;
    assert!(held >= 4, "{held}");
    greeted(&curl(&mail, "alice", &path), ALICE.mailhost_uid)?;
    assert_eq!(mail.laptop.number(Role::Signer, "plain_held")?, held);
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_accepted")?, 1);
    refused(&python(&mail, "alice"))?;
    // The same bytes elsewhere are not that program.
    not_connected(&curl(&mail, "alice", "/usr/bin/curl"))?;
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_accepted")?, 1);
    assert_eq!(mail.laptop.number(Role::Signer, "plain_refused")?, 4);
    assert_eq!(mail.laptop.number(Role::Signer, "programs_found")?, 1);
    // carol is not permitted, whatever program she runs.
    not_connected(&curl(&mail, "carol", &path))?;
    let log = mail.signer.log()?;
    for told in [
        "program_not_permitted",
        "command=\"python3\"",
        "command=\"curl\"",
    ] {
        assert!(log.contains(told), "{told}: {log}");
    }
    Ok(())
}

#[test]
fn a_listed_path_counts_by_its_present_file() -> Result {
    let mail = topology_of_curl()?;
    let (path, fresh, kept) = (
        in_folder("curl"),
        in_folder("curl.dpkg-new"),
        in_folder("kept"),
    );
    let laptop = &mail.laptop;
    greeted(&curl(&mail, "alice", &path), ALICE.mailhost_uid)?;
    has_ticket(&mail, 1)?;
    // Twice: by the file that was looked up with the policy, and by one that took its place.
    for _ in 0..2 {
        laptop.run(["cp", "/usr/bin/curl", &fresh])?;
        laptop.run(["ln", "-f", &path, &kept])?;
        laptop.run(["mv", &fresh, &path])?;
        greeted(&curl(&mail, "alice", &path), ALICE.mailhost_uid)?;
        greeted(&curl(&mail, "alice", &path), ALICE.mailhost_uid)?;
        not_connected(&curl(&mail, "alice", &kept))?;
        refused(&python(&mail, "alice"))?;
    }
    // At first the path has no file; then it has one that is newer than the apply.
    laptop.run(["rm", &path])?;
    not_connected(&curl(&mail, "alice", &kept))?;
    list(&mail, &[&path])?;
    assert_eq!(laptop.number(Role::Signer, "programs_missing")?, 1);
    laptop.run(["cp", "/usr/bin/curl", &path])?;
    greeted(&curl(&mail, "alice", &path), ALICE.mailhost_uid)?;
    assert_eq!(laptop.number(Role::Signer, "programs_missing")?, 0);
    Ok(())
}

// Threat model: A45
#[test]
fn a_users_own_mount_namespace_makes_no_program_a_listed_one() -> Result {
    let mail = topology_of_curl()?;
    let path = in_folder("curl");
    let in_namespace = |words: &str| {
        let unshare = [
            "unshare",
            "--mount",
            "--user",
            "--map-root-user",
            "sh",
            "-e",
            "-c",
            words,
        ];
        mail.laptop.command(unshare).user("alice")
    };
    let address = mail.mailhost.ipv4();
    let client = format!("{path} /var/lib/client.py {address}");
    let bound = format!("mount --bind \"$(readlink -f /usr/bin/python3)\" {path}; {client}");
    refused(&in_namespace(&bound))?;
    // The listed program itself is, whatever it is called there.
    let renamed =
        format!("mount --bind {path} /usr/bin/env; /usr/bin/env --silent telnet://{address}:7000");
    greeted(&in_namespace(&renamed), ALICE.mailhost_uid)?;
    refused(&in_namespace(&bound))
}

// Threat model: A45
#[test]
fn programs_that_ask_have_to_be_listed_as_well() -> Result {
    let mail = topology_of_curl()?;
    let asked = ["usher", "connect", "mailhost:greeter"];
    let greeting = format!("{}\n", ALICE.mailhost_uid);
    let connects = || connects(&mail, "alice", "1", "3").run();
    let told = |output: &usher_lab::Output| {
        assert!(!output.status.success());
        assert!(
            output.stderr.contains("this one is not listed"),
            "{output:?}"
        );
    };
    let through_the_proxy = || {
        let url = "telnet://127.0.1.1:7000";
        let curl = mail.laptop.command([&in_folder("curl"), "--silent", url]);
        curl.user("alice").run()
    };
    told(&mail.laptop.command(asked).user("alice").run()?);
    assert!(connects()?.stdout.starts_with("errno 13: "));
    assert_eq!(through_the_proxy()?.stdout, "");

    list(&mail, &["/var/lib/connects"])?;
    connect(&mail, "alice", 1, 3)?;
    has_ticket(&mail, 1)?;
    // With its tokens, too.
    connect(&mail, "alice", 2, 3)?;
    told(&mail.laptop.command(asked).user("alice").run()?);
    refused(&python(&mail, "alice"))?;

    list(&mail, &[USHER])?;
    assert_eq!(mail.laptop.run_as("alice", asked)?.stdout, greeting);
    assert_eq!(through_the_proxy()?.stdout, greeting);
    assert!(connects()?.stdout.starts_with("errno 13: "));

    apply(&mail, "")?;
    assert_eq!(mail.laptop.run_as("alice", asked)?.stdout, greeting);
    connect(&mail, "alice", 1, 1)?;
    refused(&python(&mail, "alice"))?;
    apply(&mail, "programs any;")?;
    assert_eq!(python(&mail, "alice").run()?.stdout, greeting);
    Ok(())
}

#[test]
fn listed_files_that_are_no_programs_are_reported() -> Result {
    let mail = topology_of_curl()?;
    let script = in_folder("script");
    mail.laptop
        .write_program(&script, "#!/usr/bin/python3 -I\nprint()\n")?;
    list(
        &mail,
        &[&script, "/usr/bin/no-such-program", &in_folder("curl")],
    )?;
    let check = mail.laptop.run(["usher", "policy", "check"])?.stderr;
    for told in [
        "script is a script, and the kernel runs `/usr/bin/python3 -I`",
        "/usr/bin/no-such-program is missing on this host",
    ] {
        assert!(check.contains(told), "{told}: {check}");
    }
    assert!(!check.contains("curl is"), "{check}");
    let log = mail.signer.log()?;
    assert!(log.contains("/usr/bin/no-such-program"), "{log}");
    assert_eq!(mail.laptop.number(Role::Signer, "programs_missing")?, 1);
    greeted(
        &curl(&mail, "alice", &in_folder("curl")),
        ALICE.mailhost_uid,
    )?;
    let explained = [
        "usher",
        "policy",
        "explain",
        "alice@laptop",
        "greeter@mailhost",
    ];
    let explained = mail.laptop.command(explained).run()?.stdout;
    assert!(
        explained.contains("by these programs only: "),
        "{explained}"
    );
    assert!(explained.contains(&in_folder("curl")), "{explained}");
    Ok(())
}

/// Without libusher's socket option the signer does not know which program asks.
#[test]
fn a_request_by_a_socket_without_a_known_program_is_refused() -> Result {
    let mail = topology_of_curl()?;
    let interpreter = mail
        .laptop
        .run(["readlink", "-f", "/usr/bin/python3"])?
        .stdout;
    list(&mail, &[interpreter.trim()])?;
    let asks = |spoken: bool| {
        let flag = if spoken { "spoken" } else { "unspoken" };
        mail.laptop
            .command(["python3", "/var/lib/asks.py", flag])
            .user("alice")
            .run()
    };
    mail.laptop.write("/var/lib/asks.py", ASKS)?;
    assert_eq!(asks(false)?.stdout, "refused 167\n");
    assert_eq!(asks(true)?.stdout, "ready\n");
    Ok(())
}

/// Asks by the protocol alone (docs/PROTOCOL.md, "Local packet").
const ASKS: &str = "
import array, socket, sys
signer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
signer.connect('/run/usher/signer/applications.sock')
stream = socket.socket()
if sys.argv[1] == 'spoken':
    stream.setsockopt(0x5573, 2, 0)
name = lambda text: bytes([len(text)]) + text
passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [stream.fileno()]))]
signer.sendmsg([bytes([1, 1]) + name(b'mailhost') + name(b'greeter')], passed)
answer = signer.recv(256)
print('ready' if answer[1] == 129 else f'refused {int.from_bytes(answer[2:4])}')
";
