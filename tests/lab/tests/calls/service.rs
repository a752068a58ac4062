//! A service that uses the calls, on the mail topology: account `calls` on mailhost, users alice
//! and bob.
#![allow(dead_code, reason = "each test program uses its part")]

use std::error::Error;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use usher_lab::{ALICE, BOB, LIBRARY_PATH, Lab, Mail, PATIENCE, Role, Running, eventually};

pub type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The service's account on mailhost.
pub const ACCOUNT: &str = "calls";
/// Its user id.
pub const ACCOUNT_UID: u32 = 900;

const SERVICE: &str = include_str!("../../programs/service.c");

/// Returns whether the keeper can serve the calls. Asked once: a keeper that a test has killed does not
/// answer, and the kernel stays the same.
pub fn has_fence(mail: &Mail) -> Result<bool> {
    static FENCE: OnceLock<bool> = OnceLock::new();
    if let Some(has) = FENCE.get() {
        return Ok(*has);
    }
    let has = mail.mailhost.number(Role::Keeper, "fence")? == 1;
    Ok(*FENCE.get_or_init(|| has))
}

/// The mail topology with two services of the account, not started: `calls` at port 7000 in the
/// style `user`, `single` at port 7001 in the style `connection`; and one that needs no fence, at a
/// port that any user may bind: `plain` at port 7003.
pub fn topology() -> Result<Mail> {
    let mail = Lab::mail()?;
    mail.mailhost.add_account(ACCOUNT, ACCOUNT_UID)?;
    mail.mailhost.write(
        "/etc/usher/policy.d/calls.policy",
        format!(
            "service calls {{ account {ACCOUNT}; listen 7000; style user; users mail; hosts laptop; \
             processes 40; }}
             service single {{ account {ACCOUNT}; listen 7001; style connection; users mail; \
             hosts laptop; }}
             service plain {{ program \"/usr/bin/cat\"; listen 7003; style connection; users mail; \
             hosts laptop; }}\n"
        ),
    )?;
    mail.laptop.write(
        "/etc/usher/policy.d/calls.policy",
        "client calls {
           users mail;
           service calls at mailhost port 7000;
           service single at mailhost port 7001;
           service plain at mailhost port 7003;
         }\n",
    )?;
    mail.apply()?;
    mail.mailhost.compile_c(SERVICE, "/var/lib/service")?;
    Ok(mail)
}

/// One topology for all tests of a program, which run one after the other: making it takes most of the
/// time in an emulated machine.
pub fn shared() -> Result<MutexGuard<'static, Mail>> {
    static SHARED: OnceLock<std::result::Result<Mutex<Mail>, String>> = OnceLock::new();
    let made = SHARED.get_or_init(|| {
        topology()
            .map(Mutex::new)
            .map_err(|error| error.to_string())
    });
    let mail = made.as_ref().map_err(String::clone)?;
    // A failed test leaves it usable, because each test ends what it started.
    Ok(mail.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The same on a kernel with the fence; none elsewhere, with a message.
pub fn fenced() -> Result<Option<MutexGuard<'static, Mail>>> {
    let mut mail = shared()?;
    if has_fence(&mail)? {
        if !mail.keeper.is_running()? {
            // A failed test has left it so.
            mail.keeper.start()?;
        }
        end_services(&mail)?;
        empty_queues(&mail)?;
        return Ok(Some(mail));
    }
    println!("skipped: this kernel runs no LSM programs");
    Ok(None)
}

/// Ends left-over processes of an earlier test: those that have become users outlive their service.
fn end_services(mail: &Mail) -> Result {
    let left = || -> Result<Vec<String>> {
        let processes = mail.mailhost.processes()?.into_iter();
        let left = processes.filter(|process| {
            [ACCOUNT_UID, ALICE.mailhost_uid, BOB.mailhost_uid].contains(&process.uid)
        });
        Ok(left.map(|process| process.pid.to_string()).collect())
    };
    eventually("the services of earlier tests have ended", || {
        let pids = left()?;
        if !pids.is_empty() {
            // It may have ended meanwhile.
            mail.mailhost
                .command(
                    ["kill", "-KILL"]
                        .into_iter()
                        .chain(pids.iter().map(String::as_str)),
                )
                .run()?;
        }
        Ok(pids.is_empty())
    })
}

/// Removes unserved connections that a test has left in the queues.
fn empty_queues(mail: &Mail) -> Result {
    let empty = || -> Result<bool> {
        let who = mail.mailhost.run(["usher", "who"])?.stdout;
        let waiting = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            matches!(words[..], [_, "calls" | "single", _, _, "established", ..])
        };
        Ok(!who.lines().any(waiting))
    };
    if empty()? {
        return Ok(());
    }
    let services = (
        start_service(mail, &["fork"])?,
        start_at(mail, "7001", &["fork"])?,
    );
    eventually("what waited has been served", empty)?;
    drop(services);
    end_services(mail)
}

/// A program of the service's account with the capabilities of its unit.
pub fn as_account(mail: &Mail, program: &[&str]) -> Result<Running> {
    with_capabilities(mail, "-all,+setuid,+setgid,+net_bind_service", program)
}

/// A program of the service's account. The group and the bounding set are set first, as by the service manager:
/// once the user is changed the fence holds. setpriv changes the user before the bounding set, and then fails
/// with libcap-ng 0.8.5 (Debian 13), or leaves the set as it is without a word with 0.8.3 (Debian 12).
pub fn with_capabilities(mail: &Mail, capabilities: &str, program: &[&str]) -> Result<Running> {
    let arguments = [
        "setpriv".into(),
        format!("--regid={ACCOUNT}"),
        "--clear-groups".into(),
        format!("--bounding-set={capabilities},+setuid"),
        "setpriv".into(),
        format!("--reuid={ACCOUNT}"),
        format!("--inh-caps={capabilities}"),
        format!("--ambient-caps={capabilities}"),
        "--no-new-privs".into(),
    ];
    let words = arguments.iter().map(String::as_str);
    Ok(mail
        .mailhost
        .command(words.chain(program.iter().copied()))
        .environment("LD_LIBRARY_PATH", LIBRARY_PATH)
        .spawn()?)
}

/// The service of the style `user`, ready.
pub fn start_service(mail: &Mail, arguments: &[&str]) -> Result<Running> {
    start_at(mail, "7000", arguments)
}

/// The service at a port, ready.
pub fn start_at(mail: &Mail, port: &str, arguments: &[&str]) -> Result<Running> {
    let mut words = vec!["/var/lib/service", port];
    words.extend(arguments);
    let mut service = as_account(mail, &words)?;
    let said = service.read_past("\n", PATIENCE)?;
    if said != "ready\n" {
        return Err(format!("the service says: {said}").into());
    }
    Ok(service)
}

/// A user's connection to the service, and the service's description of it.
pub struct Client {
    pub connection: Running,
    pub greeting: String,
}

impl Client {
    pub fn connect(mail: &Mail, user: &str) -> Result<Self> {
        Self::connect_to(mail, user, "mailhost:calls")
    }

    pub fn connect_to(mail: &Mail, user: &str, service: &str) -> Result<Self> {
        let mut connection = mail
            .laptop
            .command(["usher", "connect", service])
            .user(user)
            .spawn()?;
        let greeting = connection.read_past("\n", PATIENCE)?;
        Ok(Self {
            connection,
            greeting,
        })
    }

    /// The process that serves it.
    pub fn pid(&self) -> Result<u32> {
        let word = self.greeting.split(' ').nth(1);
        let pid = word.ok_or_else(|| format!("no process in {:?}", self.greeting))?;
        Ok(pid.parse()?)
    }

    /// Sends a line and requires its echo.
    pub fn echo(&mut self, text: &str) -> Result {
        self.connection.write(format!("{text}\n"))?;
        let heard = self.connection.read_past("\n", PATIENCE)?;
        assert_eq!(heard, format!("{text}\n"));
        Ok(())
    }
}

/// Requires that the user is served at the port of another service, which a program serves.
#[track_caller]
pub fn reads_mail(mail: &Mail, user: &str) -> Result {
    let mut mailbox = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user(user)
        .spawn()?;
    let greeting = mailbox.read_past("\n", PATIENCE)?;
    let logged_in = format!("Logged in as {user}");
    assert!(greeting.contains(&logged_in), "{greeting}");
    Ok(())
}
