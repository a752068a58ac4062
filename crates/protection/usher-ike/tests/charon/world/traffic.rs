//! Traffic of a host's programs, by sockets with the marks of classes.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getsockopt, setsockopt, socket,
    sockopt,
};
use usher_protection::Class;

use super::{Host, LIMIT, mark};

const PORT: u16 = 7000;

/// The port of numbered datagrams, the time between two of them, and how late one may arrive.
const COUNTED: u16 = 7001;
const BETWEEN: Duration = Duration::from_millis(4);
const LATEST: Duration = Duration::from_secs(2);

impl Host {
    /// Runs in a thread that is in the host's namespace.
    pub fn inside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let path = Path::new("/run/netns").join(&self.namespace);
        let namespace = std::fs::File::open(path).expect("the namespace");
        std::thread::spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).expect("setns");
            work()
        })
    }

    /// A server that returns what it receives, and the marks of the sockets that it has accepted.
    pub fn serve(&self) -> Arc<parking_lot::Mutex<Vec<u32>>> {
        let marks = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let accepted = Arc::clone(&marks);
        let (ready, is_ready) = std::sync::mpsc::channel();
        self.inside(move || {
            let listener = TcpListener::bind(("::", PORT)).expect("bind");
            ready.send(()).expect("the test waits");
            for connection in listener.incoming() {
                let mut connection = connection.expect("accept");
                let mark = getsockopt(&connection, sockopt::Mark).expect("SO_MARK");
                accepted.lock().push(mark);
                std::thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(count) = connection.read(&mut bytes) {
                        if count == 0 || connection.write_all(&bytes[..count]).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        is_ready.recv().expect("the server");
        marks
    }

    /// Sends something from a socket of the class to the server at the address; returns whether it
    /// came back.
    pub fn echo(&self, class: Option<Class>, server: IpAddr) -> std::io::Result<()> {
        let mark = class.map_or(0, mark);
        let work = move || {
            let mut connection = connect_marked(mark, SocketAddr::new(server, PORT))?;
            connection.write_all(b"hello")?;
            let mut back = [0; 5];
            connection.read_exact(&mut back)?;
            assert_eq!(&back, b"hello");
            Ok(())
        };
        self.inside(work).join().expect("no panic")
    }

    /// Sends a datagram of the class from one of the host's addresses. The kernel drops it while it has
    /// no SAs.
    pub fn send_from(&self, class: Class, source: IpAddr, peer: IpAddr) {
        let work = move || {
            let socket = UdpSocket::bind((source, 0)).expect("the host's address");
            setsockopt(&socket, sockopt::Mark, &mark(class)).expect("SO_MARK");
            socket
                .send_to(b"hello", (peer, PORT))
                .expect("it is kept back");
        };
        self.inside(work).join().expect("no panic");
    }

    /// A connection of the class on which data goes back and forth until the count is reached;
    /// `meanwhile` is called after each round.
    pub fn converse(
        &self,
        class: Class,
        server: IpAddr,
        rounds: usize,
        mut meanwhile: impl FnMut(usize) + Send + 'static,
    ) -> std::io::Result<()> {
        let mark = mark(class);
        let work = move || {
            let mut connection = connect_marked(mark, SocketAddr::new(server, PORT))?;
            let data = [7; 2048];
            for round in 0..rounds {
                connection.write_all(&data)?;
                let mut back = [0; 2048];
                connection.read_exact(&mut back)?;
                assert_eq!(back, data);
                meanwhile(round);
            }
            Ok(())
        };
        self.inside(work).join().expect("no panic")
    }
}

/// Datagrams that two hosts send each other, all numbered.
pub struct Counting {
    stop: Arc<AtomicBool>,
    /// The thread that sends, and the one that receives, for each direction.
    threads: Vec<(JoinHandle<Sent>, JoinHandle<BTreeSet<u64>>)>,
}

/// How many datagrams the kernel took, and how many calls it refused.
type Sent = (u64, u64);

/// The fate of the datagrams of one direction.
#[derive(Debug)]
struct Counted {
    /// How many the kernel took.
    sent: u64,
    /// How many calls the kernel refused, because an SA ended after the kernel had chosen it. These calls
    /// were repeated.
    refused: u64,
    /// Datagrams that were sent and have not arrived.
    lost: Vec<u64>,
}

impl Counting {
    /// Begins to send datagrams of the class between two hosts, both ways.
    pub fn begin(hosts: [&Host; 2], class: Class) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = [[0, 1], [1, 0]].map(|[from, to]| {
            let (from, to) = (hosts[from], hosts[to]);
            let server = SocketAddr::new(to.addresses[0], COUNTED);
            let (ready, is_ready) = std::sync::mpsc::channel();
            let ended = Arc::clone(&stop);
            let receiving = to.inside(move || {
                let socket = UdpSocket::bind(server).expect("the host's address");
                socket.set_read_timeout(Some(LATEST)).expect("a limit");
                ready.send(()).expect("the test waits");
                let mut received = BTreeSet::new();
                let mut number = [0; 8];
                loop {
                    match socket.recv(&mut number) {
                        Ok(_) => {
                            received.insert(u64::from_be_bytes(number));
                        }
                        Err(_) if ended.load(Ordering::SeqCst) => return received,
                        Err(_) => {}
                    }
                }
            });
            is_ready.recv().expect("the receiver");
            let ended = Arc::clone(&stop);
            let sending = from.inside(move || {
                let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
                setsockopt(&socket, sockopt::Mark, &mark(class)).expect("SO_MARK");
                let (mut number, mut refused): (u64, u64) = (0, 0);
                while !ended.load(Ordering::SeqCst) {
                    match socket.send_to(&number.to_be_bytes(), server) {
                        Ok(_) => number += 1,
                        // The SA ended after the kernel had chosen it: the caller knows, and sends again.
                        Err(error) => {
                            assert_eq!(error.raw_os_error(), Some(nix::libc::EINVAL));
                            refused += 1;
                        }
                    }
                    std::thread::sleep(BETWEEN);
                }
                (number, refused)
            });
            (sending, receiving)
        });
        Self {
            stop,
            threads: threads.into(),
        }
    }

    /// Ends it. Checks that datagrams were sent each way, and that all have arrived.
    pub fn end_without_loss(self) {
        self.stop.store(true, Ordering::SeqCst);
        let ways = self.threads.into_iter().map(|(sending, receiving)| {
            let (sent, refused) = sending.join().expect("no panic");
            let received = receiving.join().expect("no panic");
            let lost = (0..sent).filter(|number| !received.contains(number));
            Counted {
                sent,
                refused,
                lost: lost.collect(),
            }
        });
        let ways: Vec<Counted> = ways.collect();
        for Counted {
            sent,
            refused,
            lost,
        } in &ways
        {
            println!("{sent} datagrams, {} lost, {refused} refused", lost.len());
        }
        assert!(
            ways.iter().all(|way| way.sent > 100 && way.lost.is_empty()),
            "{ways:?}"
        );
    }
}

fn connect_marked(mark: u32, address: SocketAddr) -> std::io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::Mark, &mark)?;
    connect(
        std::os::fd::AsRawFd::as_raw_fd(&socket),
        &SockaddrStorage::from(address),
    )?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}
