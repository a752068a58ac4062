//! The same conversations with both servers, the programs themselves: each serves a connection
//! with calendars in a folder of the test's own.

use std::error::Error;
use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use usher_calendar::client::{Client, ClientError};
use usher_calendar::event::TimeKind;
use usher_calendar::protocol::{Answer, Code, MAXIMUM_REQUEST, Occurrence, Request};

type Outcome = Result<(), Box<dyn Error>>;

/// Longer than any answer takes; a server that has none fails the test instead of keeping it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server and a connection to it. Dropping it ends both.
struct Server {
    process: Child,
    connection: UnixStream,
}

impl Server {
    fn rust(directory: &Path) -> Result<Self, Box<dyn Error>> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_calendar-server"));
        command.args(["connection", "--directory"]).arg(directory);
        Self::start(command)
    }

    fn python(directory: &Path) -> Result<Self, Box<dyn Error>> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut command = Command::new("python3");
        command
            .arg("-P")
            .arg(root.join("examples/calendar.py"))
            .arg("connection")
            .arg(directory)
            .env("PYTHONPATH", root.join("python/usher"))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        Self::start(command)
    }

    fn start(mut command: Command) -> Result<Self, Box<dyn Error>> {
        let (connection, theirs) = UnixStream::pair()?;
        connection.set_read_timeout(Some(PATIENCE))?;
        let process = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn()?;
        Ok(Self {
            process,
            connection,
        })
    }

    fn client(&self) -> Result<Client<UnixStream>, Box<dyn Error>> {
        Ok(Client::new(self.connection.try_clone()?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = self
            .connection
            .shutdown(Shutdown::Both)
            .and_then(|()| self.process.wait().map(drop));
        if let Err(error) = ended {
            eprintln!("a server does not end: {error}");
        }
    }
}

/// Has the conversation with both servers, each in a folder of its own.
fn with_both(conversation: impl Fn(&Server, &Path) -> Outcome) -> Outcome {
    for start in [Server::rust, Server::python] {
        let directory = tempfile::tempdir()?;
        let directory = directory.path().join("calendars");
        conversation(&start(&directory)?, &directory)?;
    }
    Ok(())
}

fn calendar(events: &[&str]) -> String {
    let mut text = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\n".to_owned();
    for event in events {
        text += &format!("BEGIN:VEVENT\r\n{event}\r\nEND:VEVENT\r\n");
    }
    text + "END:VCALENDAR\r\n"
}

fn add(name: &str, events: &[&str]) -> Request {
    Request::Add {
        calendar: name.to_owned(),
        text: calendar(events),
    }
}

fn remove(uid: &str) -> Request {
    Request::Remove {
        uid: uid.to_owned(),
        calendar: None,
        organizer: None,
        sequence: None,
    }
}

fn march(
    client: &mut Client<UnixStream>,
) -> Result<(Vec<Occurrence>, bool, String), Box<dyn Error>> {
    let request = Request::Events {
        from: "2026-03-01T00:00:00Z".parse()?,
        to: "2026-04-01T00:00:00Z".parse()?,
        calendar: None,
    };
    match client.ask(&request)? {
        Answer::Events {
            events,
            complete,
            version,
        } => Ok((events, complete, version)),
        other => Err(format!("{other:?}").into()),
    }
}

fn refusal(client: &mut Client<UnixStream>, request: &Request) -> Result<Code, Box<dyn Error>> {
    match client.ask(request) {
        Err(ClientError::Refused { code, text }) if !text.is_empty() => Ok(code),
        other => Err(format!("{other:?}").into()),
    }
}

#[test]
fn both_servers_keep_the_same_calendars() -> Outcome {
    with_both(|server, directory| {
        let mut client = server.client()?;
        let (events, complete, empty) = march(&mut client)?;
        assert!(events.is_empty() && complete);
        let weekly = "UID:weekly\r\nSUMMARY:Stand\\, up\r\nLOCATION:Room \r\n 3\r\n\
            DTSTART;TZID=Europe/Berlin:20260302T090000\r\nDURATION:PT15M\r\n\
            RRULE:FREQ=WEEKLY;BYDAY=MO,WE;UNTIL=20260331T220000Z\r\n\
            EXDATE;TZID=Europe/Berlin:20260304T090000";
        let moved = "UID:weekly\r\nSUMMARY:Moved\r\nRECURRENCE-ID:20260309T080000Z\r\n\
            DTSTART:20260309T140000Z\r\nDTEND:20260309T150000Z";
        let day = "UID:day\r\nSUMMARY:Away\r\nDTSTART;VALUE=DATE:20260301\r\nX-KEPT:yes";
        let daily = "UID:daily\r\nDTSTART:20260210T070000\r\nRRULE:FREQ=DAILY;INTERVAL=10;COUNT=3";
        let uids = ["daily", "day", "weekly"].map(str::to_owned).to_vec();
        let added = client.ask(&add("work", &[weekly, moved, day, daily]))?;
        assert_eq!(added, Answer::Added { uids });

        let (events, complete, version) = march(&mut client)?;
        assert!(complete);
        assert_ne!(version, empty);
        let starts: Vec<String> = events
            .iter()
            .map(|event| event.start.format("%d %H:%M").to_string())
            .collect();
        assert_eq!(
            starts,
            [
                "01 00:00", "02 07:00", "02 08:00", "09 14:00", "11 08:00", "16 08:00", "18 08:00",
                "23 08:00", "25 08:00", "30 07:00",
            ]
        );
        assert_eq!(events[0].time, TimeKind::Day);
        assert_eq!(
            events[0].end,
            "2026-03-02T00:00:00Z".parse::<chrono::DateTime<chrono::Utc>>()?
        );
        assert_eq!(events[1].time, TimeKind::Floating);
        assert_eq!(events[2].summary, "Stand, up");
        assert_eq!(events[2].location.as_deref(), Some("Room 3"));
        assert!(events[2].recurring && !events[0].recurring);

        let answer = client.ask(&Request::Calendars {})?;
        let Answer::Calendars { calendars, .. } = answer else {
            return Err(format!("{answer:?}").into());
        };
        assert_eq!(
            (calendars[0].name.as_str(), calendars[0].events),
            ("work", 3)
        );
        let file = fs::read_to_string(directory.join("work.ics"))?;
        assert!(
            file.contains("X-KEPT:yes") && file.contains("LOCATION:Room \r\n 3"),
            "{file}"
        );

        assert_eq!(refusal(&mut client, &remove("other"))?, Code::Unknown);
        let removed = client.ask(&remove("weekly"))?;
        assert_eq!(
            removed,
            Answer::Removed {
                calendars: vec!["work".to_owned()]
            }
        );
        assert_eq!(march(&mut client)?.0.len(), 2);
        Ok(())
    })
}

#[test]
fn an_event_is_changed_by_its_organizer_and_by_newer_versions_only() -> Outcome {
    with_both(|server, _| {
        let mut client = server.client()?;
        let version = |sequence: u32, organizer: &str| {
            let event = format!(
                "UID:1\r\nSUMMARY:{sequence}\r\nSEQUENCE:{sequence}\r\n\
                 ORGANIZER;CN=\"A: B\":MAILTO:{organizer}\r\nDTSTART:20260310T120000Z"
            );
            add("work", &[&event])
        };
        client.ask(&version(2, "a@example.org"))?;
        assert_eq!(
            refusal(&mut client, &version(1, "a@example.org"))?,
            Code::Outdated
        );
        assert_eq!(
            refusal(&mut client, &version(3, "m@example.org"))?,
            Code::Outdated
        );
        client.ask(&version(3, "A@example.org"))?;
        let cancel = |organizer: &str, sequence| Request::Remove {
            uid: "1".to_owned(),
            calendar: None,
            organizer: Some(organizer.to_owned()),
            sequence: Some(sequence),
        };
        assert_eq!(
            refusal(&mut client, &cancel("m@example.org", 3))?,
            Code::Outdated
        );
        assert_eq!(
            refusal(&mut client, &cancel("a@example.org", 2))?,
            Code::Outdated
        );
        client.ask(&cancel("a@example.org", 3))?;
        assert!(march(&mut client)?.0.is_empty());
        Ok(())
    })
}

#[test]
fn waiting_ends_when_another_program_changes_a_file() -> Outcome {
    with_both(|server, directory| {
        let mut client = server.client()?;
        client.ask(&add("work", &["UID:1\r\nDTSTART:20260310T120000Z"]))?;
        let (_, _, version) = march(&mut client)?;
        let wait = |seconds| Request::Wait {
            version: version.clone(),
            seconds,
        };
        assert_eq!(
            client.ask(&wait(0))?,
            Answer::Version {
                version: version.clone()
            }
        );
        let path = directory.join("work.ics");
        let changed = fs::read_to_string(&path)?.replace("DTSTART:20260310", "DTSTART:20260311");
        fs::write(&path, changed)?;
        let answer = client.ask(&wait(300))?;
        assert!(matches!(&answer, Answer::Version { version: new } if *new != version));
        let (events, _, _) = march(&mut client)?;
        assert_eq!(events[0].start.format("%d").to_string(), "11");
        Ok(())
    })
}

#[test]
fn what_is_not_understood_is_refused_or_told() -> Outcome {
    with_both(|server, directory| {
        let mut client = server.client()?;
        for name in ["", "..", "../x", "a b"] {
            let request = add(name, &["UID:1\r\nDTSTART:20260310T120000Z"]);
            assert_eq!(refusal(&mut client, &request)?, Code::Request, "{name}");
        }
        for event in [
            "UID:1",
            "UID:1\r\nDTSTART:soon",
            "UID:1\r\nDTSTART:20260310T120000Z\r\nX",
        ] {
            assert_eq!(
                refusal(&mut client, &add("work", &[event]))?,
                Code::Text,
                "{event}"
            );
        }
        assert_eq!(refusal(&mut client, &add("work", &[]))?, Code::Text);
        let often = "UID:1\r\nDTSTART:20260310T120000Z\r\nRRULE:FREQ=SECONDLY";
        assert_eq!(refusal(&mut client, &add("work", &[often]))?, Code::Text);
        assert!(!directory.join("work.ics").exists());

        fs::create_dir_all(directory)?;
        fs::write(
            directory.join("broken.ics"),
            "BEGIN:VCALENDAR\nBEGIN:VEVENT\n",
        )?;
        fs::write(directory.join("odd.ics"), calendar(&[often]))?;
        assert!(!march(&mut client)?.1);
        let request = add("broken", &["UID:1\r\nDTSTART:20260310T120000Z"]);
        assert_eq!(refusal(&mut client, &request)?, Code::Files);
        Ok(())
    })
}

#[test]
fn a_line_that_is_no_request_ends_the_connection_with_a_reason() -> Outcome {
    let long = format!(
        "{{\"ask\":\"calendars\",\"x\":\"{}\"}}\n",
        "x".repeat(MAXIMUM_REQUEST)
    );
    let lines = [
        "hello\n",
        "{\"ask\":\"calendars\",\"more\":1}\n",
        "{\"ask\":\"wait\",\"version\":\"\",\"seconds\":-1}\n",
        "{\"ask\":\"wait\",\"version\":\"\",\"seconds\":true}\n",
        "{\"ask\":\"events\",\"from\":\"yesterday\",\"to\":\"2026-01-01T00:00:00Z\"}\n",
        "{\"ask\":\"remove\",\"uid\":[[[[]]]]}\n",
        "\u{0}\n",
        long.as_str(),
    ];
    for line in lines {
        with_both(|server, _| {
            let mut connection = &server.connection;
            // The server may have answered and gone before it has read all of a long line.
            let written = connection.write_all(line.as_bytes());
            assert!(
                written.is_ok() || line.len() > MAXIMUM_REQUEST,
                "{written:?}"
            );
            let mut answer = Vec::new();
            let read = connection.read_to_end(&mut answer);
            assert!(read.is_ok() || line.len() > MAXIMUM_REQUEST, "{read:?}");
            let answer: Answer = serde_json::from_slice(&answer)?;
            assert!(
                matches!(
                    answer,
                    Answer::Refused {
                        code: Code::Request,
                        ..
                    }
                ),
                "{answer:?}"
            );
            Ok(())
        })?;
    }
    Ok(())
}
