//! Answers requests: all connections of a user share one store.

use std::io::{self, BufReader};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::protocol::{self, Answer, Code, MAXIMUM_REQUEST, MAXIMUM_WAIT, Request};
use crate::store::{Store, StoreError};

/// The longest silence on a connection.
pub const SILENCE: Duration = Duration::from_secs(600);
/// The interval at which a waiting connection checks the files for changes by other programs.
const LOOK: Duration = Duration::from_millis(500);

/// A user's calendars, shared by the user's connections.
#[derive(Debug)]
pub struct Service {
    store: Mutex<Store>,
    changed: Condvar,
}

impl Service {
    /// Serves the calendars in `directory`.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self {
            store: Mutex::new(Store::new(directory)),
            changed: Condvar::new(),
        }
    }

    /// Serves a connection to its end. A malformed request is answered, and ends it.
    ///
    /// # Errors
    /// When the connection fails, or is silent for longer than [`SILENCE`].
    pub fn serve(&self, connection: &TcpStream) -> io::Result<()> {
        connection.set_read_timeout(Some(SILENCE))?;
        connection.set_write_timeout(Some(SILENCE))?;
        let mut reader = BufReader::new(connection);
        let mut writer = connection;
        loop {
            match protocol::read(&mut reader, MAXIMUM_REQUEST) {
                Ok(Some(request)) => protocol::write_answer(&mut writer, &self.answer(&request))?,
                Ok(None) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    let text = error.to_string();
                    let code = Code::Request;
                    return protocol::write(&mut writer, &Answer::Refused { code, text });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The answer to a request; blocks for `wait`.
    #[must_use]
    pub fn answer(&self, request: &Request) -> Answer {
        let answer = match request {
            Request::Wait { version, seconds } => self.wait(version, *seconds),
            other => answer_at_once(&mut self.store(), other),
        };
        if let Ok(Answer::Added { .. } | Answer::Removed { .. }) = answer {
            self.changed.notify_all();
        }
        answer.unwrap_or_else(|error| Answer::Refused {
            code: code(&error),
            text: error.to_string(),
        })
    }

    fn wait(&self, version: &str, seconds: u64) -> Result<Answer, StoreError> {
        let end = Instant::now() + Duration::from_secs(seconds.min(MAXIMUM_WAIT));
        let mut store = self.store();
        loop {
            let present = store.version()?;
            let left = end.saturating_duration_since(Instant::now());
            if present != version || left.is_zero() {
                return Ok(Answer::Version { version: present });
            }
            store = match self.changed.wait_timeout(store, left.min(LOOK)) {
                Ok((store, _)) => store,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Ignores the poison of a thread that panicked: the cache is checked against the files anyway.
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn answer_at_once(store: &mut Store, request: &Request) -> Result<Answer, StoreError> {
    match request {
        Request::Calendars {} => Ok(Answer::Calendars {
            calendars: store.calendars()?,
            version: store.version()?,
        }),
        Request::Events { from, to, calendar } => {
            let (events, complete) = store.events(*from, *to, calendar.as_deref())?;
            Ok(Answer::Events {
                events,
                complete,
                version: store.version()?,
            })
        }
        Request::Add { calendar, text } => Ok(Answer::Added {
            uids: store.add(calendar, text)?,
        }),
        Request::Remove {
            uid,
            calendar,
            organizer,
            sequence,
        } => Ok(Answer::Removed {
            calendars: store.remove(uid, calendar.as_deref(), organizer.as_deref(), *sequence)?,
        }),
        Request::Wait { .. } => Ok(Answer::Version {
            version: store.version()?,
        }),
    }
}

fn code(error: &StoreError) -> Code {
    match error {
        StoreError::Name(_) => Code::Request,
        StoreError::NoCalendar(_) | StoreError::NoEvent(_) => Code::Unknown,
        StoreError::Older { .. } | StoreError::Organizer(_) => Code::Outdated,
        StoreError::Text(_)
        | StoreError::TextTooLong
        | StoreError::NoEvents
        | StoreError::Event { .. } => Code::Text,
        StoreError::TooManyCalendars | StoreError::Broken { .. } | StoreError::Files { .. } => {
            Code::Files
        }
    }
}
