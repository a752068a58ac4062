//! The acts of modules, for people: a line of the journal for each refusal and each process that was lowered,
//! and the kinds of refusals with their counts.
//!
//! The kernel does not wait for this process: events that are not read in time are lost, and the kernel
//! counts them. Lines are limited for each user, as all lines of daemons are.

use std::collections::HashMap;
use std::time::Duration;

use nix::errno::Errno;
use usher_daemon::events;
use usher_local::requests::RefusalView;
use usher_mac::{EntryPoint, ModuleEvent, Outcome, Told};

/// How often events are read.
pub(super) const READING: Duration = Duration::from_secs(1);

/// The trouble that events cannot be read.
pub(super) const EVENTS: &str = "events of modules";

/// Limit of the kinds of refusals that are kept. A new kind replaces the one whose last refusal is oldest.
pub(super) const KINDS: usize = 4096;

/// A kind of refusal: module, entry point, elements of the process and of the object.
type Kind = (String, EntryPoint, Told, Told);

/// The refusals of one kind.
#[derive(Debug, Default)]
struct Refusals {
    count: u64,
    /// The number that the last of them has among all refusals.
    number: u64,
    last: String,
}

/// The refusals by modules.
#[derive(Debug, Default)]
pub(super) struct Journal {
    kinds: HashMap<Kind, Refusals>,
    /// Refusals of all kinds.
    refusals: u64,
}

impl Journal {
    /// Notes an event, and writes a line about it.
    pub(super) fn note(&mut self, event: ModuleEvent) {
        let line = line(&event);
        let user = event.process.map(|_| event.uid);
        match (event.outcome, user) {
            (Outcome::Lowered, _) => {
                tracing::info!(name: events::PROCESS_LOWERED, uid = event.uid, "{line}");
            }
            (_, Some(uid)) => {
                tracing::info!(name: events::MODULE_REFUSED, uid, reason = %event.point, "{line}");
            }
            (_, None) => {
                tracing::info!(name: events::MODULE_REFUSED, reason = %event.point, "{line}");
            }
        }
        if event.outcome != Outcome::Lowered {
            self.count(event, line);
        }
    }

    fn count(&mut self, event: ModuleEvent, last: String) {
        self.refusals += 1;
        let kind = (event.module, event.point, event.subject, event.object);
        if self.kinds.len() >= KINDS && !self.kinds.contains_key(&kind) {
            let kinds = self.kinds.iter();
            let oldest = kinds.min_by_key(|(_, refusals)| refusals.number);
            let oldest = oldest.map(|(kind, _)| kind.clone());
            if let Some(kind) = oldest {
                self.kinds.remove(&kind);
            }
        }
        let refusals = self.kinds.entry(kind).or_default();
        refusals.count += 1;
        refusals.number = self.refusals;
        refusals.last = last;
    }

    pub(super) fn views(&self) -> Vec<RefusalView> {
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort_by_key(|(_, refusals)| std::cmp::Reverse(refusals.number));
        let views = kinds.into_iter();
        let views = views.map(|((module, point, subject, object), refusals)| RefusalView {
            module: module.clone(),
            entry_point: point.to_string(),
            subject: text_of_element(subject),
            object: text_of_element(object),
            count: refusals.count,
            last: refusals.last.clone(),
        });
        views.collect()
    }
}

/// The text of an element, if there is one.
fn text_of_element(element: &Told) -> Option<String> {
    match element {
        Told::Nothing => None,
        Told::Unknown => Some("unknown".to_owned()),
        Told::Element(text) => Some(text.clone()),
    }
}

/// An element for people.
fn told(element: &Told) -> String {
    match element {
        Told::Nothing => "no element".to_owned(),
        Told::Unknown => "an element that is not known".to_owned(),
        Told::Element(text) => text.clone(),
    }
}

/// The act by which a process was lowered.
fn did(point: EntryPoint) -> &'static str {
    match point {
        EntryPoint::FilePermission => "it read",
        EntryPoint::MmapFile => "it mapped",
        EntryPoint::SocketRecvmsg => "it received from",
        EntryPoint::MsgQueueMsgrcv => "it took a message from",
        EntryPoint::ShmShmat => "it attached",
        _ => "it used",
    }
}

/// The object of an event.
fn object(event: &ModuleEvent) -> String {
    let Some(file) = &event.file else {
        return match event.point.class() {
            "sockets" => "a socket",
            "ipc" => "an object of IPC",
            "processes" => "a process",
            _ => "an object",
        }
        .to_owned();
    };
    let place = format!("inode {} of {}:{}", file.inode, file.major, file.minor);
    match &file.name {
        Some(name) => format!("{name} ({place})"),
        None => format!("a file without a name ({place})"),
    }
}

/// An event in one line. Processes choose the names in it; characters that could begin another line are
/// escaped where lines are written.
fn line(event: &ModuleEvent) -> String {
    let module = &event.module;
    let who = match (event.process, &event.command) {
        (Some(process), Some(command)) => format!("{command} (pid {process})"),
        (Some(process), None) => format!("pid {process}"),
        (None, _) => "a packet".to_owned(),
    };
    let (own, object) = (told(&event.subject), object(event));
    let at = format!("at {}, with {}", event.point, told(&event.object));
    match event.outcome {
        Outcome::Lowered => {
            let (next, did) = (told(&event.element), did(event.point));
            format!("{module}: {who} was at {own}, and is at {next}: {did} {object}")
        }
        Outcome::Refused(error) => {
            let error = Errno::from_raw(error).desc();
            format!("{module} refused {who}, with {own}: {object} {at}: {error}")
        }
        Outcome::NotLowered(reason) => format!(
            "{module} refused {who}, with {own}: {object} {at}: the process would get lower by it, and \
             cannot: {reason}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use usher_mac::{EventFile, NotLowered};

    use super::*;

    fn event(outcome: Outcome) -> ModuleEvent {
        let element = |text: &str| Told::Element(text.to_owned());
        ModuleEvent {
            module: "lomac".into(),
            point: EntryPoint::FilePermission,
            outcome,
            process: Some(4711),
            uid: 1000,
            command: Some("cat".into()),
            subject: element("lomac/high"),
            object: element("lomac/10"),
            element: element("lomac/10"),
            file: Some(EventFile {
                major: 8,
                minor: 1,
                inode: 33,
                name: Some("notes".into()),
            }),
        }
    }

    #[test]
    fn a_line_says_who_got_lower_by_what() {
        let lowered = event(Outcome::Lowered);
        let expected = "lomac: cat (pid 4711) was at lomac/high, and is at lomac/10: it read notes \
                        (inode 33 of 8:1)";
        assert_eq!(line(&lowered), expected);
        let received = ModuleEvent {
            point: EntryPoint::SocketRecvmsg,
            command: None,
            file: None,
            ..lowered
        };
        let expected =
            "lomac: pid 4711 was at lomac/high, and is at lomac/10: it received from a socket";
        assert_eq!(line(&received), expected);
    }

    #[test]
    fn a_line_says_who_was_refused_what_and_why() {
        let refused = event(Outcome::Refused(13));
        let expected = "lomac refused cat (pid 4711), with lomac/high: notes (inode 33 of 8:1) at \
                        file_permission, with lomac/10: Permission denied";
        assert_eq!(line(&refused), expected);
        let kept = line(&event(Outcome::NotLowered(NotLowered::IsTraced)));
        assert!(
            kept.ends_with("and cannot: another process traces it or may answer its system calls, or it traces one"),
            "{kept}"
        );
        let packet = ModuleEvent {
            process: None,
            command: None,
            subject: Told::Nothing,
            object: Told::Unknown,
            file: None,
            ..refused
        };
        assert!(line(&packet).starts_with("lomac refused a packet, with no element: "));
    }

    #[test]
    fn refusals_of_one_kind_are_counted_together() {
        let mut journal = Journal::default();
        let other = ModuleEvent {
            uid: 7,
            process: Some(8),
            ..event(Outcome::Refused(1))
        };
        let elsewhere = ModuleEvent {
            point: EntryPoint::InodeUnlink,
            ..other.clone()
        };
        for event in [
            event(Outcome::Refused(13)),
            other,
            event(Outcome::Lowered),
            elsewhere,
        ] {
            journal.note(event);
        }
        let views = journal.views();
        let found: Vec<_> = views
            .iter()
            .map(|view| (view.entry_point.as_str(), view.count))
            .collect();
        assert_eq!(found, [("inode_unlink", 1), ("file_permission", 2)]);
        assert!(views[1].last.contains("pid 8"), "{views:?}");
    }

    #[test]
    fn of_too_many_kinds_the_oldest_one_is_left_out() {
        let mut journal = Journal::default();
        let numbered = |number: usize| ModuleEvent {
            subject: Told::Element(format!("lomac/{number}")),
            ..event(Outcome::Refused(13))
        };
        for number in (0..KINDS).chain([0, KINDS]) {
            journal.note(numbered(number));
        }
        let views = journal.views();
        assert_eq!(views.len(), KINDS);
        let has = |text: &str| {
            views
                .iter()
                .any(|view| view.subject.as_deref() == Some(text))
        };
        assert!(has("lomac/0") && has("lomac/2") && !has("lomac/1"));
    }
}
