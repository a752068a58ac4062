//! A user is disabled and enabled again and again. After a disable that has succeeded no connection of
//! the user is served: none that was open, none that was under way, and no new one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use usher_lab::{Host, Mail, PATIENCE, Running, eventual, eventually};

use crate::service::{ERIN, Result};
use crate::storm::{client, counts};

/// How many connections are under way at each disable.
const UNDER_WAY: usize = 4;

/// The time in which a disabled user tries to connect.
const TRYING: Duration = Duration::from_millis(300);

/// The time after which a connection without a greeting is given up.
const GREETED: Duration = Duration::from_secs(20);

/// The figures of a storm about the disabled user.
#[derive(Debug, Default)]
pub struct Disablings {
    /// How many disables succeeded.
    pub disables: u64,
    /// Connections that were served between such a disable and the next enable.
    pub served_after_disable: u64,
}

/// The thread that disables and enables the user.
pub struct Disabling {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<std::result::Result<Disablings, String>>,
}

impl Disabling {
    pub fn begin(mail: &Mail) -> Self {
        let (laptop, mailhost) = (mail.laptop.clone(), mail.mailhost.clone());
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            disable_until(&over, &laptop, &mailhost).map_err(|error| error.to_string())
        });
        Self { is_over, thread }
    }

    /// Waits until the user has been disabled at least once, and is served.
    pub fn end(self) -> Result<Disablings> {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.join();
        Ok(ended.map_err(|_| "the thread that disables has failed")??)
    }
}

fn disable_until(over: &AtomicBool, laptop: &Host, mailhost: &Host) -> Result<Disablings> {
    let mut done = Disablings::default();
    let mut open = vec![served(laptop)?];
    loop {
        for _ in 0..UNDER_WAY {
            open.push(connect(laptop)?);
        }
        disable(mailhost)?;
        done.disables += 1;
        for mut connection in open.drain(..) {
            done.served_after_disable += u64::from(lives(&mut connection)?);
        }
        done.served_after_disable += served_anew(laptop, mailhost)?;
        enable(mailhost)?;
        open.push(served(laptop)?);
        if over.load(Ordering::Relaxed) {
            return Ok(done);
        }
    }
}

fn disable(mailhost: &Host) -> Result {
    let command = mailhost.command(["usher", "user", "disable", ERIN.0]);
    eventually("the user is disabled", || {
        let output = command.run()?;
        match output.status.code() {
            Some(0) => Ok(true),
            // A daemon cuts when it goes on or starts; killed processes exit later.
            Some(3 | 5) => Ok(false),
            _ => Err(format!("{output:?}").into()),
        }
    })
}

fn enable(mailhost: &Host) -> Result {
    let command = mailhost.command(["usher", "user", "enable", ERIN.0]);
    eventually("the user is enabled", || {
        Ok(command.run()?.status.success())
    })
}

fn connect(laptop: &Host) -> Result<Running> {
    let command = laptop.command(["usher", "connect", "mailhost:storm"]);
    Ok(command.user(ERIN.0).spawn()?)
}

/// A connection that is served, and stays.
fn served(laptop: &Host) -> Result<Running> {
    eventual("the enabled user is served", || {
        let mut connection = connect(laptop)?;
        let Ok(greeting) = connection.read_past("\n", GREETED) else {
            return Ok(None);
        };
        assert_eq!(greeting.trim(), ERIN.1.to_string());
        Ok(Some(connection))
    })
}

/// Whether it is answered; if not, it has to end.
fn lives(connection: &mut Running) -> Result<bool> {
    // A program that has ended does not read.
    let lives = connection.write("still here\n").is_ok()
        && connection.read_past("still here", PATIENCE).is_ok();
    if !lives {
        let ended = connection.wait(PATIENCE)?;
        ended.ok_or("a connection of a disabled user neither lives nor ends")?;
    }
    Ok(lives)
}

/// How many of a disabled user's new connections are served.
fn served_anew(laptop: &Host, mailhost: &Host) -> Result<u64> {
    let address = mailhost.ipv4().to_string();
    let mut running = Vec::new();
    for way in ["user", "plain"] {
        running.push(client(laptop, ERIN, way, &address)?);
    }
    std::thread::sleep(TRYING);
    let mut served = 0;
    for running in running {
        let counts = counts(running)?;
        served += counts["right"] + counts["wrong"];
    }
    Ok(served)
}
