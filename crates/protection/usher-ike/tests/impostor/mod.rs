//! A program in place of charon: it answers like one that has no SAs, until the test says otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use usher_ike::vici::Section;

/// The impostor's act when it is asked something.
#[derive(Clone)]
pub enum Act {
    /// Sends these bytes and waits for the next question.
    Send(Vec<u8>),
    /// Sends them again and again.
    Repeat(Vec<u8>),
    /// Sends them and ends the connection.
    End(Vec<u8>),
}

/// The questions, with their messages.
type Asked = Arc<Mutex<Vec<(String, Section)>>>;

type Faults = Arc<Mutex<BTreeMap<&'static str, Act>>>;

/// The connections and keys that were loaded, beside a connection of the administrator's.
#[derive(Default)]
struct Loaded {
    conns: BTreeSet<String>,
    keys: Vec<String>,
}

pub struct Impostor {
    _folder: TempDir,
    pub path: PathBuf,
    faults: Faults,
    asked: Asked,
    loaded: Arc<Mutex<Loaded>>,
}

impl Impostor {
    /// Answers the question of this name by an act, and all others like charon.
    pub fn with_fault(question: &'static str, act: Act) -> Self {
        let impostor = Self::plausible();
        impostor.fault(question, act);
        impostor
    }

    /// Answers this question too by an act.
    pub fn fault(&self, question: &'static str, act: Act) {
        self.faults.lock().insert(question, act);
    }

    /// Answers all like charon.
    pub fn plausible() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("vici");
        let listener = UnixListener::bind(&path).expect("bind");
        let impostor = Self {
            _folder: folder,
            path,
            faults: Faults::default(),
            asked: Arc::default(),
            loaded: Arc::default(),
        };
        let (faults, asked) = (Arc::clone(&impostor.faults), Arc::clone(&impostor.asked));
        let loaded = Arc::clone(&impostor.loaded);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (faults, asked) = (Arc::clone(&faults), Arc::clone(&asked));
                tokio::spawn(serve(stream, faults, asked, Arc::clone(&loaded)));
            }
        });
        impostor
    }

    /// From now on it answers all like charon.
    pub fn repent(&self) {
        self.faults.lock().clear();
    }

    /// Forgets what was loaded.
    pub fn unload(&self) {
        *self.loaded.lock() = Loaded::default();
    }

    /// The questions so far.
    pub fn asked(&self) -> Vec<String> {
        let asked = self.asked.lock();
        asked.iter().map(|(name, _)| name.clone()).collect()
    }

    /// The values of this name in all messages of a question so far.
    pub fn values(&self, question: &str, name: &str) -> Vec<String> {
        let asked = self.asked.lock();
        let messages = asked.iter().filter(|(asked, _)| asked == question);
        messages.filter_map(|(_, said)| said.text(name)).collect()
    }
}

/// Answers until the other side leaves.
async fn serve(mut stream: UnixStream, faults: Faults, asked: Asked, loaded: Arc<Mutex<Loaded>>) {
    while let Some((kind, name, said)) = question(&mut stream).await {
        asked.lock().push((name.clone(), said.clone()));
        let act = faults.lock().get(name.as_str()).cloned();
        let sent = match act {
            None => {
                let answer = plausible(kind, &name, &said, &mut loaded.lock());
                stream.write_all(&answer).await
            }
            Some(Act::Send(bytes)) => stream.write_all(&bytes).await,
            Some(Act::Repeat(bytes)) => loop {
                if let Err(error) = stream.write_all(&bytes).await {
                    break Err(error);
                }
            },
            Some(Act::End(bytes)) => {
                // The other side may have left.
                let _sent = stream.write_all(&bytes).await;
                return;
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

/// The kind, the name and the message of the next request.
async fn question(stream: &mut UnixStream) -> Option<(u8, String, Section)> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await.ok()?;
    let mut packet = vec![0; usize::try_from(u32::from_be_bytes(length)).ok()?];
    stream.read_exact(&mut packet).await.ok()?;
    let (kind, rest) = packet.split_first()?;
    let (length, rest) = rest.split_first()?;
    let (name, said) = rest.split_at_checked((*length).into())?;
    let name = String::from_utf8(name.to_vec()).ok()?;
    Some((*kind, name, Section::decode(said).ok()?))
}

/// The answers of a charon without SAs.
fn plausible(kind: u8, name: &str, asked: &Section, loaded: &mut Loaded) -> Vec<u8> {
    const REGISTER: u8 = 3;
    let said = match name {
        _ if kind == REGISTER => return packet(b"\x05"),
        "version" => Section::new()
            .value("daemon", "charon")
            .value("version", "5.9.8"),
        "initiate" => Section::new()
            .value("success", "no")
            .value("errmsg", "it has no network"),
        "load-conn" => {
            let names = asked.sections().map(|(name, _)| name.to_owned());
            loaded.conns.extend(names);
            Section::new().value("success", "yes")
        }
        "load-key" => {
            let id = format!("{:040x}", loaded.keys.len());
            loaded.keys.push(id.clone());
            Section::new().value("success", "yes").value("id", id)
        }
        "unload-conn" => {
            loaded
                .conns
                .retain(|own| Some(own) != asked.text("name").as_ref());
            Section::new().value("success", "yes")
        }
        "unload-key" => {
            loaded
                .keys
                .retain(|own| Some(own) != asked.text("id").as_ref());
            Section::new().value("success", "yes")
        }
        "list-conns" => {
            let own = loaded.conns.iter().map(String::as_str);
            return conns(&[&["home"], own.collect::<Vec<_>>().as_slice()].concat());
        }
        "get-keys" => Section::new().list("keys", &loaded.keys),
        "get-algorithms" | "list-sas" => Section::new(),
        _ => Section::new().value("success", "yes"),
    };
    answer(&said)
}

/// A packet of the protocol.
pub fn packet(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("a short one");
    [&length.to_be_bytes(), body].concat()
}

/// A packet with the answer of a command.
pub fn answer(said: &Section) -> Vec<u8> {
    packet(&[b"\x01", said.encode().expect("short").as_slice()].concat())
}

/// A packet with an event.
pub fn event(name: &str, said: &Section) -> Vec<u8> {
    let length = u8::try_from(name.len()).expect("a short one");
    let head = [&[7, length], name.as_bytes()].concat();
    packet(&[head.as_slice(), said.encode().expect("short").as_slice()].concat())
}

/// The packets with which charon lists these connections.
pub fn conns(names: &[&str]) -> Vec<u8> {
    let children = Section::new().section("children", Section::new());
    let one = |name: &&str| event("list-conn", &Section::new().section(name, children.clone()));
    let mut packets: Vec<Vec<u8>> = names.iter().map(one).collect();
    packets.push(answer(&Section::new()));
    packets.concat()
}
