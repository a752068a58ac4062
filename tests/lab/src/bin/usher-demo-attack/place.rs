//! One configuration in force: where the mail is, how users reach it, and the way through the hole.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::time::{Duration, Instant};

use usher_lab::{ALICE, BOB, Host, LabError, PATIENCE, Running, User};

use crate::Outcome;
use crate::table::{Cell, Configuration};

/// The mail of all users, on a file system of its own.
pub(crate) const MAIL: &str = "/srv/mail";
/// The account of the usual mail server.
pub(crate) const VMAIL: &str = "vmail";
/// The users' passwords at the usual mail server.
pub(crate) const PASSWORDS: &str = "alice:quince17jelly\nbob:walnut23shell\n";

/// The subject of what alice uploads.
const WRITTEN: &str = "Queen cells on frame seven";

/// The time in which a service that lives answers, even in an emulated machine.
const LIFE: Duration = Duration::from_secs(30);

/// The time in which a service begins to serve after the configuration has changed.
const SERVES: Duration = Duration::from_secs(120);

/// How the results are noted: row and cell.
pub(crate) type Note<'a> = dyn FnMut(&str, Cell) -> Outcome + 'a;

/// The mail service in one configuration.
pub(crate) struct Place {
    pub(crate) configuration: Configuration,
    pub(crate) laptop: Host,
    pub(crate) server: Host,
    /// The attacker's host, on the wire between the two.
    pub(crate) stranger: Host,
}

impl Place {
    pub(crate) fn new(
        configuration: Configuration,
        laptop: Host,
        server: Host,
        stranger: Host,
    ) -> Self {
        Self {
            configuration,
            laptop,
            server,
            stranger,
        }
    }

    /// The account on the server whose processes serve a user.
    pub(crate) fn account(&self, user: User) -> &'static str {
        if self.configuration.netauth {
            user.name
        } else {
            VMAIL
        }
    }

    fn uid(&self, user: User) -> u32 {
        if self.configuration.netauth {
            user.mailhost_uid
        } else {
            5000
        }
    }

    pub(crate) fn password(user: User) -> &'static str {
        let mut lines = PASSWORDS.lines().filter_map(|line| line.split_once(':'));
        lines
            .find(|(name, _)| *name == user.name)
            .map_or("", |(_, password)| password)
    }

    /// Undoes what attacks have changed, and waits until the service serves.
    pub(crate) fn restore(&self) -> Outcome {
        self.clean()?;
        self.deliver()?;
        let mut last = String::new();
        let deadline = Instant::now() + SERVES;
        loop {
            match self.selects() {
                Ok(true) => return Ok(()),
                Ok(false) => last.clear(),
                Err(error) => last = error.to_string(),
            }
            if Instant::now() > deadline {
                return Err(format!("the service does not serve alice {last}").into());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn selects(&self) -> Outcome<bool> {
        let mut session = self.session(ALICE)?;
        Ok(session.command("SELECT INBOX")?.contains("OK [READ-WRITE]"))
    }

    fn clean(&self) -> Outcome {
        for folder in [MAIL, "/var/spool/cron/crontabs", "/srv/root"] {
            for entry in fs::read_dir(self.server.path(folder))? {
                let path = entry?.path();
                if path.is_dir() {
                    fs::remove_dir_all(path)?;
                } else {
                    fs::remove_file(path)?;
                }
            }
        }
        self.server
            .write_program("/srv/bin/report", "#!/bin/sh\ndate\n")?;
        self.server.run(["chmod", "777", "/srv/bin/report"])?;
        self.server
            .write("/srv/backup/alice", message(ALICE.subject))?;
        self.server.run(["chown", "backup", "/srv/backup/alice"])?;
        let key = "-----BEGIN PRIVATE KEY-----\nof the service\n";
        self.server.write("/srv/lib/service.key", key)?;
        self.server.run(["chmod", "600", "/srv/lib/service.key"])?;
        let keys = format!("/home/{}/.ssh", self.account(BOB));
        self.server.run(["rm", "-rf", &keys])?;
        Ok(())
    }

    /// Puts a message into the mailbox of each user who has none.
    pub(crate) fn deliver(&self) -> Outcome {
        for user in [ALICE, BOB] {
            if self.has_message(user)? {
                continue;
            }
            let folder = format!("{MAIL}/{}", user.name);
            for part in ["", "/new", "/cur", "/tmp"] {
                let path = self.server.path(format!("{folder}{part}"));
                fs::create_dir_all(&path)?;
                chown(&path, Some(self.uid(user)), Some(self.uid(user)))?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
            }
            let path = self.server.path(format!("{folder}/new/1.1.server"));
            fs::write(&path, message(user.subject))?;
            chown(&path, Some(self.uid(user)), Some(self.uid(user)))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            if self.configuration.biba {
                let label = format!("find {folder} -exec setfmac biba/low {{}} +");
                self.server.run(["sh", "-c", &label])?;
            }
        }
        Ok(())
    }

    /// Whether the server has the message that was delivered to a user.
    pub(crate) fn has_message(&self, user: User) -> Outcome<bool> {
        Ok(self.holds(&format!("{MAIL}/{}", user.name), user.subject)?)
    }

    /// Whether a file of `new` or `cur` of a Maildir has this text.
    pub(crate) fn holds(&self, maildir: &str, text: &str) -> Result<bool, std::io::Error> {
        for part in ["new", "cur"] {
            let folder = self.server.path(format!("{maildir}/{part}"));
            if !folder.exists() {
                continue;
            }
            for entry in fs::read_dir(folder)? {
                if fs::read_to_string(entry?.path())?.contains(text) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Connects as a user, who has logged in then.
    pub(crate) fn session(&self, user: User) -> Outcome<Session> {
        let (command, greeting) = if self.configuration.netauth {
            let command = self.laptop.command(["usher", "connect", "mailhost:imap"]);
            (command, "* PREAUTH")
        } else {
            let address = format!("TCP:{}:143", self.server.ipv4());
            (self.laptop.command(["socat", "-", &address]), "* OK")
        };
        let mut running = command.user(user.name).spawn()?;
        let greeted = running.read_past("* ", PATIENCE)?;
        if !greeted.starts_with(greeting) {
            return Err(format!("the service greets {} with {greeted}", user.name).into());
        }
        let mut session = Session { running, number: 0 };
        if !self.configuration.netauth {
            let login = format!("LOGIN {} {}", user.name, Self::password(user));
            let answer = session.command(&login)?;
            if !answer.contains("OK ") {
                return Err(format!("{} cannot log in: {answer}", user.name).into());
            }
        }
        Ok(session)
    }

    /// The users' work, by real clients.
    pub(crate) fn work(&self, note: &mut Note) -> Outcome {
        note(
            "work: alice's mbsync fetches her mail and uploads what she wrote",
            cell(self.synchronizes()?),
        )?;
        let mut session = self.session(BOB)?;
        session.command("SELECT INBOX")?;
        let fetched = session.command("FETCH 1 BODY.PEEK[]")?;
        note(
            "work: bob reads his mail",
            cell(fetched.contains(BOB.subject)),
        )
    }

    fn synchronizes(&self) -> Outcome<bool> {
        let host = if self.configuration.netauth {
            "mailhost".into()
        } else {
            self.server.ipv4().to_string()
        };
        let settings = format!(
            "IMAPAccount mail\nHost {host}\nPort 143\nUser alice\nPass {}\nSSLType None\nAuthMechs LOGIN\n\n\
             IMAPStore far\nAccount mail\n\nMaildirStore near\nPath ~/Mail/\nInbox ~/Mail/INBOX\n\
             SubFolders Verbatim\n\nChannel mail\nFar :far:\nNear :near:\nPatterns INBOX Sent\nCreate Both\n\
             SyncState *\n",
            Self::password(ALICE)
        );
        let prepare = "umask 077; rm -rf Mail; mkdir -p Mail/Sent/new Mail/Sent/cur Mail/Sent/tmp; \
                       cat >.mbsyncrc; printf 'From: alice\\nTo: bob\\nSubject: %s\\n\\nLook.\\n' \"$0\" \
                       >Mail/Sent/cur/1.1.laptop:2,S";
        self.laptop
            .command(["sh", "-c", prepare, WRITTEN])
            .user(ALICE.name)
            .input(settings)
            .succeed()?;
        let synchronized = self
            .laptop
            .command(["mbsync", "-a"])
            .user(ALICE.name)
            .run()?;
        if !synchronized.status.success() {
            eprint!("{}{}", synchronized.stdout, synchronized.stderr);
        }
        let fetched = self
            .laptop
            .command(["grep", "-rqF", ALICE.subject, "Mail/INBOX"])
            .user(ALICE.name)
            .run()?;
        let uploaded = self.holds(&format!("{MAIL}/{}/.Sent", ALICE.name), WRITTEN)?;
        Ok(fetched.status.success() && uploaded)
    }
}

pub(crate) fn cell(has_effect: bool) -> Cell {
    if has_effect {
        Cell::Reached
    } else {
        Cell::Refused
    }
}

fn message(subject: &str) -> String {
    format!("From: Postmaster <postmaster@server>\nSubject: {subject}\n\nFor you only.\n")
}

/// A connection with the service.
pub(crate) struct Session {
    pub(crate) running: Running,
    number: u32,
}

impl Session {
    /// Sends a command; returns all lines up to its answer.
    pub(crate) fn command(&mut self, command: &str) -> Result<String, LabError> {
        self.number += 1;
        let tag = format!("tag-{:04}", self.number);
        self.running.write(format!("{tag} {command}\r\n"))?;
        self.running.read_past(&format!("{tag} "), PATIENCE)
    }

    /// Has the planted command run this script; returns what it prints.
    pub(crate) fn run(&mut self, script: &str) -> Result<String, LabError> {
        let script = format!("exec 9>&2 </dev/null 2>&1\n{script}");
        self.command(&format!("XRUN {{{}+}}\r\n{script}", script.len()))
    }

    /// Whether the service still answers.
    pub(crate) fn lives(&mut self) -> bool {
        self.number += 1;
        let tag = format!("tag-{:04}", self.number);
        let asked = self.running.write(format!("{tag} NOOP\r\n"));
        let answer = asked.and_then(|()| self.running.read_past(&format!("{tag} "), LIFE));
        answer.is_ok_and(|answer| answer.contains(" OK "))
    }
}
