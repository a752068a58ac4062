//! The addresses at which the proxy listens, and what each of them serves.

use std::collections::BTreeMap;
use std::io;
use std::net::{self, SocketAddrV4};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::net::Shutdown;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use usher_policy::ProxyListener;

use super::serve::{self, Server};

/// All listeners. An address keeps its socket as long as the policy has it: host, service and protocol
/// change behind it, so that no client meets a closed port meanwhile.
pub struct Listeners {
    present: Mutex<BTreeMap<SocketAddrV4, Listener>>,
    server: Arc<Server>,
}

struct Listener {
    socket: Arc<TcpListener>,
    served: watch::Sender<ProxyListener>,
    task: AbortHandle,
}

impl Listeners {
    /// No listeners yet.
    pub fn new(server: Arc<Server>) -> Self {
        Self {
            present: Mutex::default(),
            server,
        }
    }

    /// The number of addresses.
    pub fn len(&self) -> usize {
        self.present.lock().len()
    }

    /// Listens at these addresses only. New sockets are made before anything changes.
    ///
    /// # Errors
    /// When a socket cannot be made; then nothing has changed.
    pub fn set(&self, wanted: Vec<ProxyListener>) -> io::Result<()> {
        let mut present = self.present.lock();
        let mut fresh = Vec::new();
        for listener in &wanted {
            if !present.contains_key(&listener.address) {
                fresh.push((listener.clone(), bind(listener.address)?));
            }
        }
        present.retain(|address, listener| {
            let stays = wanted.iter().find(|wanted| wanted.address == *address);
            match stays {
                Some(wanted) => listener.serve(wanted),
                None => listener.close(),
            }
            stays.is_some()
        });
        for (listener, socket) in fresh {
            note(&listener);
            let socket = Arc::new(socket);
            let (served, receiver) = watch::channel(listener.clone());
            let accepting = serve::listen(Arc::clone(&socket), receiver, Arc::clone(&self.server));
            let task = tokio::spawn(accepting).abort_handle();
            let made = Listener {
                socket,
                served,
                task,
            };
            present.insert(listener.address, made);
        }
        Ok(())
    }
}

impl Listener {
    fn serve(&self, wanted: &ProxyListener) {
        let is_new = self.served.send_if_modified(|served| {
            let is_new = served != wanted;
            if is_new {
                served.clone_from(wanted);
            }
            is_new
        });
        if is_new {
            note(wanted);
        }
    }

    /// Frees the address at once. The task, which shares the socket, ends later: until then the socket does
    /// not listen, and as [`bind`] sets SO_REUSEADDR, another one can.
    fn close(&self) {
        self.task.abort();
        if let Err(error) = rustix::net::shutdown(&self.socket, Shutdown::Read) {
            tracing::warn!(%error, "cannot close a listener at once: its address may be taken for a moment");
        }
    }
}

fn note(listener: &ProxyListener) {
    tracing::info!(address = %listener.address, host = %listener.host, service = %listener.service, "serving");
}

fn bind(address: SocketAddrV4) -> io::Result<TcpListener> {
    let bound = || {
        let listener = net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    };
    bound().map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpStream};

    use usher_policy::Protocol;

    use super::*;

    fn listener(port: u16, service: &str, protocol: Protocol) -> ProxyListener {
        ProxyListener {
            address: SocketAddrV4::new(Ipv4Addr::new(127, 77, 0, 1), port),
            host: "mailhost".parse().unwrap(),
            service: service.parse().unwrap(),
            protocol,
        }
    }

    /// A port that is free on the address of [`listener`].
    fn free_port() -> u16 {
        let any = listener(0, "any", Protocol::Raw).address;
        net::TcpListener::bind(any)
            .unwrap()
            .local_addr()
            .unwrap()
            .port()
    }

    fn listeners() -> Listeners {
        Listeners::new(Arc::new(Server::new()))
    }

    /// The services at all addresses.
    fn served(listeners: &Listeners) -> Vec<ProxyListener> {
        let present = listeners.present.lock();
        present
            .values()
            .map(|one| one.served.borrow().clone())
            .collect()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_address_keeps_its_socket_and_serves_something_else() {
        let (listeners, port) = (listeners(), free_port());
        let socket = |listeners: &Listeners| {
            let present = listeners.present.lock();
            Arc::as_ptr(&present.values().next().unwrap().socket)
        };
        listeners
            .set(vec![listener(port, "imap", Protocol::Raw)])
            .unwrap();
        let first = socket(&listeners);
        for next in [
            listener(port, "mail", Protocol::Raw),
            listener(port, "mail", Protocol::Imap),
        ] {
            listeners.set(vec![next.clone()]).unwrap();
            assert_eq!(served(&listeners), [next]);
            assert_eq!(socket(&listeners), first);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_address_that_goes_is_free_at_once() {
        let (listeners, port) = (listeners(), free_port());
        let one = listener(port, "imap", Protocol::Raw);
        for _ in 0..100 {
            listeners.set(vec![one.clone()]).unwrap();
            TcpStream::connect(one.address).unwrap();
            listeners.set(Vec::new()).unwrap();
            assert!(TcpStream::connect(one.address).is_err());
            // Another program may take the address as well.
            drop(net::TcpListener::bind(one.address).unwrap());
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_taken_address_leaves_everything_as_it_was() {
        let (listeners, port) = (listeners(), free_port());
        let before = listener(port, "imap", Protocol::Imap);
        listeners.set(vec![before.clone()]).unwrap();
        let taken = net::TcpListener::bind(listener(0, "any", Protocol::Raw).address).unwrap();
        let wanted = |taken| vec![listener(port, "mail", Protocol::Raw), taken];
        let other = listener(taken.local_addr().unwrap().port(), "pop", Protocol::Raw);
        let error = listeners.set(wanted(other.clone())).unwrap_err();
        assert!(
            error.to_string().starts_with(&other.address.to_string()),
            "{error}"
        );
        assert_eq!(served(&listeners), [before]);
        drop(taken);
        listeners.set(wanted(other)).unwrap();
        assert_eq!(listeners.len(), 2);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_client_that_waits_when_its_address_goes_is_reset() {
        let (listeners, port) = (listeners(), free_port());
        let one = listener(port, "imap", Protocol::Raw);
        listeners.set(vec![one.clone()]).unwrap();
        let mut client = TcpStream::connect(one.address).unwrap();
        listeners.set(Vec::new()).unwrap();
        // Accepted, and then refused for lack of a signer, or never accepted.
        let end = tokio::task::spawn_blocking(move || client.read(&mut [0]));
        assert!(end.await.unwrap().is_err());
    }
}
