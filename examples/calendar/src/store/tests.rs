use std::path::Path;
use std::time::SystemTime;

use super::file::SETTLED;
use super::*;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn text(uid: &str, properties: &str) -> String {
    format!(
        "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nBEGIN:VEVENT\r\nUID:{uid}\r\n\
         DTSTART:20260105T120000Z\r\n{properties}\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
    )
}

fn summaries(store: &mut Store) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let (from, to) = (
        "2026-01-01T00:00:00Z".parse()?,
        "2026-02-01T00:00:00Z".parse()?,
    );
    let (events, _) = store.events(from, to, None)?;
    Ok(events.into_iter().map(|event| event.summary).collect())
}

fn age(path: &Path) -> io::Result<()> {
    let past = SystemTime::now() - 10 * SETTLED;
    File::options().write(true).open(path)?.set_modified(past)
}

#[test]
fn a_file_is_parsed_once_and_again_when_it_has_changed() -> Outcome {
    let home = tempfile::tempdir()?;
    let path = home.path().join("work.ics");
    fs::write(&path, text("1", "SUMMARY:one"))?;
    age(&path)?;
    let mut store = Store::new(home.path().to_owned());
    for _ in 0..3 {
        assert_eq!(summaries(&mut store)?, ["one"]);
    }
    assert_eq!(store.parsed, 1);
    let version = store.version()?;
    fs::write(&path, text("1", "SUMMARY:two"))?;
    assert_eq!(summaries(&mut store)?, ["two"]);
    assert_ne!(store.version()?, version);
    // Just written: a second change could have the same timestamp.
    let parsed = store.parsed;
    assert_eq!(summaries(&mut store)?, ["two"]);
    assert_eq!(store.parsed, parsed + 1);
    fs::remove_file(&path)?;
    assert!(summaries(&mut store)?.is_empty());
    Ok(())
}

#[test]
fn events_are_added_replaced_by_newer_ones_and_removed() -> Outcome {
    let home = tempfile::tempdir()?;
    let mut store = Store::new(home.path().join("calendars"));
    assert!(store.calendars()?.is_empty());
    let first = text("1", "SUMMARY:one\r\nSEQUENCE:1\r\nX-UNKNOWN:kept");
    assert_eq!(store.add("work", &first)?, ["1"]);
    store.add("home", &text("2", "SUMMARY:other"))?;
    assert_eq!(summaries(&mut store)?, ["one", "other"]);
    let raw = fs::read_to_string(home.path().join("calendars/work.ics"))?;
    assert!(raw.contains("X-UNKNOWN:kept"));

    let older = store.add("work", &text("1", "SUMMARY:older"));
    assert!(matches!(
        older,
        Err(StoreError::Older {
            present: 1,
            given: 0,
            ..
        })
    ));
    let foreign = text("1", "SUMMARY:x\r\nSEQUENCE:9\r\nORGANIZER:mailto:mallory@x");
    assert!(matches!(
        store.add("work", &foreign),
        Err(StoreError::Organizer(_))
    ));
    store.add("work", &text("1", "SUMMARY:newer\r\nSEQUENCE:2"))?;
    assert_eq!(summaries(&mut store)?, ["newer", "other"]);

    let older = store.remove("1", None, None, Some(1));
    assert!(matches!(older, Err(StoreError::Older { .. })));
    let foreign = store.remove("1", None, Some("mallory@x"), None);
    assert!(matches!(foreign, Err(StoreError::Organizer(_))));
    assert!(store.remove("1", Some("home"), None, None).is_err());
    assert_eq!(store.remove("1", None, None, Some(2))?, ["work"]);
    assert_eq!(summaries(&mut store)?, ["other"]);
    assert!(matches!(
        store.remove("1", None, None, None),
        Err(StoreError::NoEvent(_))
    ));
    Ok(())
}

#[test]
fn one_occurrence_of_many_is_moved_and_another_called_off() -> Outcome {
    let home = tempfile::tempdir()?;
    let mut store = Store::new(home.path().to_owned());
    store.add(
        "work",
        &text("1", "SUMMARY:daily\r\nRRULE:FREQ=DAILY;COUNT=3"),
    )?;
    let moved = "SUMMARY:moved\r\nRECURRENCE-ID:20260106T120000Z";
    let moved = text("1", moved).replace("DTSTART:20260105T12", "DTSTART:20260106T15");
    store.add("work", &moved)?;
    let off = "STATUS:CANCELLED\r\nRECURRENCE-ID:20260107T120000Z";
    store.add("work", &text("1", off))?;
    assert_eq!(summaries(&mut store)?, ["daily", "moved"]);
    assert_eq!(store.calendars()?[0].events, 1);
    Ok(())
}

#[test]
fn what_is_not_understood_is_told_and_left_alone() -> Outcome {
    let home = tempfile::tempdir()?;
    let mut store = Store::new(home.path().to_owned());
    fs::write(home.path().join("broken.ics"), "no calendar")?;
    fs::write(home.path().join("bytes.ics"), b"\xff")?;
    fs::write(
        home.path().join("odd.ics"),
        text("1", "DTSTART:never").replace("DTSTART:2", "X:2"),
    )?;
    fs::write(home.path().join("no name!.ics"), text("1", ""))?;
    let problems: Vec<usize> = store
        .calendars()?
        .iter()
        .map(|calendar| calendar.problems.len())
        .collect();
    assert_eq!(problems, [1, 1, 1]);
    let refused = store.add("broken", &text("1", ""));
    assert!(matches!(refused, Err(StoreError::Broken { .. })));
    assert_eq!(
        fs::read_to_string(home.path().join("broken.ics"))?,
        "no calendar"
    );
    let (_, complete) = store.events(
        "2026-01-01T00:00:00Z".parse()?,
        "2026-02-01T00:00:00Z".parse()?,
        None,
    )?;
    assert!(!complete);
    for name in [
        "",
        "../x",
        ".x",
        "a/b",
        "a b",
        &"x".repeat(MAXIMUM_NAME + 1),
    ] {
        let refused = store.add(name, &text("1", ""));
        assert!(matches!(refused, Err(StoreError::Name(_))), "{name}");
    }
    let refused = store.add("work", "BEGIN:VCALENDAR\nEND:VCALENDAR\n");
    assert!(matches!(refused, Err(StoreError::NoEvents)));
    let refused = store.add("work", &"x".repeat(MAXIMUM_ADDED + 1));
    assert!(matches!(refused, Err(StoreError::TextTooLong)));
    Ok(())
}

#[test]
fn two_servers_of_a_user_lose_nothing() -> Outcome {
    let home = tempfile::tempdir()?;
    std::thread::scope(|scope| {
        let adders: Vec<_> = (0..2)
            .map(|server| {
                let mut store = Store::new(home.path().to_owned());
                scope.spawn(move || {
                    for number in 0..20 {
                        store.add("work", &text(&format!("{server}-{number}"), ""))?;
                    }
                    Ok::<(), StoreError>(())
                })
            })
            .collect();
        adders
            .into_iter()
            .try_for_each(|adder| adder.join().expect("no panic"))
    })?;
    assert_eq!(
        Store::new(home.path().to_owned()).calendars()?[0].events,
        40
    );
    Ok(())
}
