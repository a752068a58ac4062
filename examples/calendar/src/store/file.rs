//! A calendar's file as it was read, and the detection of its changes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};

use super::StoreError;
use crate::event::Event;
use crate::protocol::{MAXIMUM_OCCURRENCES, Occurrence};
use crate::text::{Calendar, MAXIMUM_TEXT};

/// Most problems reported for a calendar.
const MAXIMUM_PROBLEMS: usize = 20;
/// Timestamps of files are coarse: only a file that has not changed for this long is certainly the
/// one that was read.
pub const SETTLED: Duration = Duration::from_secs(1);

/// A file as it was read.
#[derive(Debug)]
pub struct Cached {
    pub identity: Identity,
    pub settled: bool,
    pub digest: u64,
    pub content: Result<Content, String>,
}

/// Attributes that change when a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

#[derive(Debug)]
pub struct Content {
    pub calendar: Calendar,
    pub events: Vec<Event>,
    pub problems: Vec<String>,
}

impl Cached {
    pub fn read(path: &Path) -> io::Result<Self> {
        let now = SystemTime::now();
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        let mut bytes = Vec::new();
        file.take(MAXIMUM_TEXT as u64 + 1).read_to_end(&mut bytes)?;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let content = match String::from_utf8(bytes) {
            Ok(text) => match text.parse::<Calendar>() {
                Ok(calendar) => Ok(Content::of(calendar)),
                Err(error) => Err(error.to_string()),
            },
            Err(_) => Err("the file is not UTF-8".to_owned()),
        };
        // A file of the future has not settled either.
        let age = now.duration_since(metadata.modified()?);
        Ok(Self {
            identity: Identity::of(&metadata),
            settled: age.is_ok_and(|age| age > SETTLED),
            digest: hasher.finish(),
            content,
        })
    }

    pub fn changeable(&self, name: &str) -> Result<&Content, StoreError> {
        self.content.as_ref().map_err(|reason| StoreError::Broken {
            name: name.to_owned(),
            reason: reason.clone(),
        })
    }
}

impl Identity {
    pub fn of(metadata: &fs::Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Content {
    pub fn of(calendar: Calendar) -> Self {
        let mut events = Vec::new();
        let mut problems = Vec::new();
        for component in calendar
            .components()
            .filter(|component| component.kind == "VEVENT")
        {
            match Event::read(component) {
                Ok(event) => events.push(event),
                Err(reason) if problems.len() < MAXIMUM_PROBLEMS => {
                    let uid = component.text("UID").unwrap_or_default();
                    problems.push(format!("event '{uid}': {reason}"));
                }
                Err(_) => {}
            }
        }
        Self {
            calendar,
            events,
            problems,
        }
    }

    /// Adds the occurrences between the two instants; false if something may be missing.
    pub fn between(
        &self,
        name: &str,
        from: DateTime<Utc>,
        to: DateTime<Utc>,
        steps: &mut usize,
        found: &mut Vec<Occurrence>,
    ) -> bool {
        let replaced: BTreeSet<(&str, DateTime<Utc>)> = self
            .events
            .iter()
            .filter_map(|event| Some((event.uid.as_str(), event.recurrence?)))
            .collect();
        let mut complete = true;
        for event in self.events.iter().filter(|event| !event.cancelled) {
            let occurrences = event.occurrences(from, to, steps);
            complete &= !occurrences.cut;
            for (start, end) in occurrences.times {
                let is_replaced = replaced.contains(&(event.uid.as_str(), start));
                if event.recurrence.is_none() && is_replaced {
                    continue;
                }
                if found.len() > MAXIMUM_OCCURRENCES {
                    return false;
                }
                found.push(Occurrence {
                    start,
                    end,
                    time: event.time,
                    calendar: name.to_owned(),
                    uid: event.uid.clone(),
                    summary: event.summary.clone(),
                    location: event.location.clone(),
                    recurring: event.is_recurring() || event.recurrence.is_some(),
                });
            }
        }
        complete
    }
}
