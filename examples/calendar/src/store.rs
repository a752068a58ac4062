//! A user's calendars: the files `~/.calendars/NAME.ics`, parsed once, read again when they have
//! changed, and replaced as a whole.

mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use chrono::{DateTime, Utc};

use self::file::{Cached, Identity};
use crate::event::Event;
use crate::protocol::{CalendarSummary, MAXIMUM_ADDED, MAXIMUM_OCCURRENCES, Occurrence};
use crate::text::{Calendar, Component, MAXIMUM_TEXT, TextError};

/// Most calendars of a user; further files are ignored.
pub const MAXIMUM_CALENDARS: usize = 64;
/// Longest name of a calendar, in bytes.
pub const MAXIMUM_NAME: usize = 64;
/// Most occurrences that are computed for one answer, for all events together.
const MAXIMUM_STEPS: usize = 500_000;
/// Reasons that a request fails.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The name of a calendar is malformed.
    #[error(
        "'{0}' is no name of a calendar: take 1 to {MAXIMUM_NAME} letters, digits, '-', '_' and \
         '.', and no '.' first"
    )]
    Name(String),
    /// There is no such calendar.
    #[error("there is no calendar '{0}'")]
    NoCalendar(String),
    /// No requested calendar has such an event.
    #[error("there is no event with UID '{0}'")]
    NoEvent(String),
    /// There would be too many calendars.
    #[error("there are {MAXIMUM_CALENDARS} calendars; remove one first")]
    TooManyCalendars,
    /// The existing event is newer.
    #[error("event '{uid}' is there with SEQUENCE {present}, which is higher than {given}")]
    Older {
        /// Of the event.
        uid: String,
        /// SEQUENCE of the existing event.
        present: u32,
        /// SEQUENCE of the given event.
        given: u32,
    },
    /// Only the organizer of an event changes it.
    #[error("event '{0}' is there with another organizer; remove it first to replace it")]
    Organizer(String),
    /// The text is not a calendar.
    #[error("the text is no calendar: {0}")]
    Text(#[from] TextError),
    /// The text has too many bytes.
    #[error("the text is longer than {MAXIMUM_ADDED} bytes")]
    TextTooLong,
    /// The text has no event.
    #[error("the text has no event")]
    NoEvents,
    /// An event in the text is not understood.
    #[error("event '{uid}': {reason}")]
    Event {
        /// Of the event; empty when it has none.
        uid: String,
        /// See [`crate::event::EventError`].
        reason: String,
    },
    /// The calendar's file is not understood, and so not changed.
    #[error("calendar '{name}' is left as it is: {reason}")]
    Broken {
        /// Of the calendar.
        name: String,
        /// Its fault.
        reason: String,
    },
    /// The system refused.
    #[error("{path}: {source}")]
    Files {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The calendars of the user this process is.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    files: BTreeMap<String, Cached>,
    #[cfg(test)]
    parsed: usize,
}

impl Store {
    /// The calendars in `directory`, which is made with the first one.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            files: BTreeMap::new(),
            #[cfg(test)]
            parsed: 0,
        }
    }

    /// Lists the calendars.
    ///
    /// # Errors
    /// [`StoreError::Files`].
    pub fn calendars(&mut self) -> Result<Vec<CalendarSummary>, StoreError> {
        self.refresh()?;
        let summary = |(name, cached): (&String, &Cached)| {
            let (uids, problems) = match &cached.content {
                Ok(content) => {
                    let uids: BTreeSet<&str> = content
                        .events
                        .iter()
                        .map(|event| event.uid.as_str())
                        .collect();
                    (uids.len(), content.problems.clone())
                }
                Err(problem) => (0, vec![problem.clone()]),
            };
            CalendarSummary {
                name: name.clone(),
                events: uids,
                problems,
            }
        };
        Ok(self.files.iter().map(summary).collect())
    }

    /// Identifies the present contents of the calendars; different contents have another version.
    ///
    /// # Errors
    /// [`StoreError::Files`].
    pub fn version(&mut self) -> Result<String, StoreError> {
        self.refresh()?;
        let mut hasher = DefaultHasher::new();
        for (name, cached) in &self.files {
            (name, cached.digest).hash(&mut hasher);
        }
        Ok(format!("{:016x}", hasher.finish()))
    }

    /// The occurrences between `from` and `to`, by time, and whether the list is complete.
    ///
    /// # Errors
    /// [`StoreError::Files`], [`StoreError::NoCalendar`].
    pub fn events(
        &mut self,
        from: DateTime<Utc>,
        to: DateTime<Utc>,
        calendar: Option<&str>,
    ) -> Result<(Vec<Occurrence>, bool), StoreError> {
        self.refresh()?;
        if let Some(name) = calendar.filter(|name| !self.files.contains_key(*name)) {
            return Err(StoreError::NoCalendar(name.to_owned()));
        }
        let mut found = Vec::new();
        let mut complete = true;
        let mut steps = MAXIMUM_STEPS;
        for (name, cached) in &self.files {
            if calendar.is_some_and(|calendar| calendar != name) {
                continue;
            }
            let Ok(content) = &cached.content else {
                complete = false;
                continue;
            };
            complete &= content.problems.is_empty();
            complete &= content.between(name, from, to, &mut steps, &mut found);
        }
        found.sort_by(|one, other| (one.start, &one.uid).cmp(&(other.start, &other.uid)));
        complete &= found.len() <= MAXIMUM_OCCURRENCES;
        found.truncate(MAXIMUM_OCCURRENCES);
        Ok((found, complete))
    }

    /// Adds the events of a calendar's text, with the time zones it brings. Replaces an existing event
    /// (same UID, same RECURRENCE-ID). All or nothing. Returns the UIDs of the added events.
    ///
    /// # Errors
    /// See [`StoreError`]; the calendar is then as it was.
    pub fn add(&mut self, name: &str, text: &str) -> Result<Vec<String>, StoreError> {
        if !is_name(name) {
            return Err(StoreError::Name(name.to_owned()));
        }
        if text.len() > MAXIMUM_ADDED {
            return Err(StoreError::TextTooLong);
        }
        let added: Calendar = text.parse()?;
        let mut events = Vec::new();
        for component in added
            .components()
            .filter(|component| component.kind == "VEVENT")
        {
            let event = Event::read(component).map_err(|reason| StoreError::Event {
                uid: component.text("UID").unwrap_or_default(),
                reason: reason.to_string(),
            })?;
            events.push((event, component.clone()));
        }
        if events.is_empty() {
            return Err(StoreError::NoEvents);
        }
        let _lock = self.lock()?;
        self.refresh()?;
        let mut calendar = match self.files.get(name) {
            Some(cached) => cached.changeable(name)?.calendar.clone(),
            None if self.files.len() >= MAXIMUM_CALENDARS => {
                return Err(StoreError::TooManyCalendars);
            }
            None => Calendar::new(),
        };
        for zone in added
            .components()
            .filter(|component| component.kind == "VTIMEZONE")
        {
            if !calendar
                .components()
                .any(|present| same_zone(present, zone))
            {
                calendar.push(zone.clone());
            }
        }
        let mut uids = BTreeSet::new();
        for (event, component) in events {
            replace(&mut calendar, &event, component)?;
            uids.insert(event.uid);
        }
        self.write(name, &calendar)?;
        Ok(uids.into_iter().collect())
    }

    /// Removes an event from all calendars, or from one. Returns the names of those it was in.
    ///
    /// # Errors
    /// See [`StoreError`]; all calendars are then as they were, except after [`StoreError::Files`],
    /// when some calendars have lost the event already.
    pub fn remove(
        &mut self,
        uid: &str,
        calendar: Option<&str>,
        organizer: Option<&str>,
        sequence: Option<u32>,
    ) -> Result<Vec<String>, StoreError> {
        let _lock = self.lock()?;
        self.refresh()?;
        let mut left = Vec::new();
        for (name, cached) in &self.files {
            if calendar.is_some_and(|calendar| calendar != name) {
                continue;
            }
            let Ok(content) = &cached.content else {
                continue;
            };
            let mut without = content.calendar.clone();
            let mut present = false;
            without.retain(|component| {
                let is_it = is_event(component, uid);
                present |= is_it;
                !is_it
            });
            if !present {
                continue;
            }
            for event in content.events.iter().filter(|event| event.uid == uid) {
                if organizer.is_some() && event.organizer.as_deref() != organizer {
                    return Err(StoreError::Organizer(uid.to_owned()));
                }
                if let Some(given) = sequence.filter(|given| *given < event.sequence) {
                    return Err(StoreError::Older {
                        uid: uid.to_owned(),
                        present: event.sequence,
                        given,
                    });
                }
            }
            left.push((name.clone(), without));
        }
        if left.is_empty() {
            return Err(StoreError::NoEvent(uid.to_owned()));
        }
        for (name, without) in &left {
            self.write(name, without)?;
        }
        Ok(left.into_iter().map(|(name, _)| name).collect())
    }

    /// Reads changed files.
    fn refresh(&mut self) -> Result<(), StoreError> {
        let names = self.names()?;
        self.files.retain(|name, _| names.contains(name));
        for name in names {
            let path = self.path(&name);
            let identity = match fs::metadata(&path) {
                Ok(metadata) => Identity::of(&metadata),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.files.remove(&name);
                    continue;
                }
                Err(source) => return Err(StoreError::Files { path, source }),
            };
            let known = self.files.get(&name);
            if known.is_some_and(|cached| cached.settled && cached.identity == identity) {
                continue;
            }
            #[cfg(test)]
            {
                self.parsed += 1;
            }
            let cached =
                Cached::read(&path).map_err(|source| StoreError::Files { path, source })?;
            self.files.insert(name, cached);
        }
        Ok(())
    }

    /// The names of the calendars; the first ones by name if there are too many.
    fn names(&self) -> Result<BTreeSet<String>, StoreError> {
        let failed = |source| StoreError::Files {
            path: self.directory.clone(),
            source,
        };
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut names = BTreeSet::new();
        for entry in entries {
            let file_name = entry.map_err(failed)?.file_name();
            let name = file_name
                .to_str()
                .and_then(|name| name.strip_suffix(".ics"));
            let Some(name) = name.filter(|name| is_name(name)) else {
                continue;
            };
            // Anything else, for instance a FIFO, could keep the reader waiting.
            if fs::metadata(self.path(name)).is_ok_and(|metadata| metadata.is_file()) {
                names.insert(name.to_owned());
                if names.len() > MAXIMUM_CALENDARS {
                    names.pop_last();
                }
            }
        }
        Ok(names)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.ics"))
    }

    /// Keeps other servers of this user from changing the files meanwhile.
    fn lock(&self) -> Result<File, StoreError> {
        let path = self.directory.join(".lock");
        let lock = || {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.directory)?;
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .open(&path)?;
            file.lock()?;
            Ok(file)
        };
        lock().map_err(|source| StoreError::Files { path, source })
    }

    /// Replaces a calendar's file: a reader sees the old one or the new one, even after a loss of
    /// power.
    fn write(&self, name: &str, calendar: &Calendar) -> Result<(), StoreError> {
        let text = calendar.to_string();
        if text.len() > MAXIMUM_TEXT {
            return Err(TextError::TooLong.into());
        }
        let replace = || {
            let mut file = tempfile::Builder::new()
                .prefix(".new-")
                .tempfile_in(&self.directory)?;
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(self.path(name)).map_err(|error| error.error)?;
            File::open(&self.directory)?.sync_all()
        };
        replace().map_err(|source| StoreError::Files {
            path: self.path(name),
            source,
        })
    }
}

fn is_name(name: &str) -> bool {
    (1..=MAXIMUM_NAME).contains(&name.len())
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn is_event(component: &Component, uid: &str) -> bool {
    component.kind == "VEVENT" && component.text("UID").is_some_and(|text| text == uid)
}

fn same_zone(one: &Component, other: &Component) -> bool {
    one.kind == "VTIMEZONE" && one.text("TZID") == other.text("TZID")
}

/// Replaces the event that `event` is a version of.
fn replace(calendar: &mut Calendar, event: &Event, component: Component) -> Result<(), StoreError> {
    for present in calendar
        .components()
        .filter(|present| is_event(present, &event.uid))
    {
        // An event that is not understood stays as it is.
        let Ok(present) = Event::read(present) else {
            continue;
        };
        if present.organizer != event.organizer {
            return Err(StoreError::Organizer(event.uid.clone()));
        }
        if present.recurrence == event.recurrence && present.sequence > event.sequence {
            return Err(StoreError::Older {
                uid: event.uid.clone(),
                present: present.sequence,
                given: event.sequence,
            });
        }
    }
    calendar.retain(|present| {
        let same = is_event(present, &event.uid)
            && Event::read(present).is_ok_and(|present| present.recurrence == event.recurrence);
        !same
    });
    calendar.push(component);
    Ok(())
}

#[cfg(test)]
mod tests;
