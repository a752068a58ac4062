//! The courier: the client side's only process that touches the network. It carries frames
//! between the signer, whose requests it trusts, and the verifiers of other hosts. It holds no key
//! and understands only the length of what it carries.
//!
//! Room: TCP connections to other hosts' verifiers, the signer's sockets. No file, no key.

mod channel;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use usher_base::HostName;
use usher_daemon::events;
use usher_daemon::packet_async::AsyncPacketSocket;
use usher_daemon::watchdog::watchdog;
use usher_local::paths;
use usher_local::roles;
use usher_proto::host_key::HostPublicKey;
use usher_proto::refusal::Refusal;
use usher_proto::relay::{MAX_CHANNELS, MAX_RELAY_PACKET, RelayReply, RelayRequest};

use crate::host_key::HostKeyHandle;
use crate::start::{self, Start, StartError};
use channel::{Channel, Destination, Outgoing};

/// Frames that may wait for one channel; more are refused with [`Refusal::Overloaded`].
const QUEUE: usize = 256;

/// Runs the courier until the process ends.
pub fn run() -> Result<(), StartError> {
    let start = Start::<roles::Courier>::begin()?;
    let public_key = start::public_host_key()?;
    let control = start.control()?;
    usher_system::privileges::raise_descriptor_limit()?;
    start.give_up_root()?;
    start.confine()?;
    start::runtime()?.block_on(async {
        tokio::spawn(control.serve(Arc::new(start)));
        start::ready("usher-courier");
        tracing::info!(name: events::DAEMON_READY, "courier ready");
        tokio::select! {
            () = carry(public_key) => Ok(()),
            () = watchdog() => Ok(()),
        }
    })
}

/// Connects to the signer, repeatedly, and carries its frames.
async fn carry(public_key: HostPublicKey) {
    let handle = HostKeyHandle::new(paths::SIGNER_HOST_KEY);
    loop {
        match AsyncPacketSocket::connect(Path::new(paths::SIGNER_RELAY)) {
            Ok(signer) => {
                tracing::info!(name: events::DAEMON_CONNECTED, "connected to the signer");
                let courier = Courier {
                    signer: Arc::new(signer),
                    public_key,
                    handle: handle.clone(),
                    channels: HashMap::new(),
                };
                courier.serve().await;
                tracing::warn!(name: events::DAEMON_GONE, "the signer has gone; waiting for it");
            }
            Err(error) => tracing::debug!(%error, "no signer yet"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

struct Courier {
    signer: Arc<AsyncPacketSocket>,
    public_key: HostPublicKey,
    handle: HostKeyHandle,
    /// Dropping a sender closes its channel: when the signer goes, the channels close.
    channels: HashMap<HostName, (Destination, mpsc::Sender<Outgoing>)>,
}

impl Courier {
    async fn serve(mut self) {
        loop {
            let request = match self.signer.receive(MAX_RELAY_PACKET).await {
                Ok(packet) if packet.bytes.is_empty() => return,
                Ok(packet) => RelayRequest::decode(&packet.bytes),
                Err(error) => {
                    tracing::warn!(%error, "cannot receive from the signer");
                    return;
                }
            };
            match request {
                Ok(RelayRequest::Forward {
                    channel,
                    server_host_key,
                    control,
                    frame,
                }) => {
                    let destination = Destination {
                        key: server_host_key,
                        addresses: control,
                    };
                    if let Err(refusal) = self.forward(&channel, destination, frame) {
                        report_lost(&self.signer, &channel, refusal).await;
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "cannot understand a request of the signer");
                    return;
                }
            }
        }
    }

    fn forward(
        &mut self,
        host: &HostName,
        destination: Destination,
        frame: Vec<u8>,
    ) -> Result<(), Refusal> {
        let usable = self
            .channels
            .get(host)
            .is_some_and(|(present, sender)| *present == destination && !sender.is_closed());
        if !usable {
            self.channels.retain(|_, (_, sender)| !sender.is_closed());
            self.channels.remove(host);
            if self.channels.len() >= MAX_CHANNELS {
                return Err(Refusal::Overloaded);
            }
            let (sender, frames) = mpsc::channel(QUEUE);
            let channel = Channel {
                host: host.clone(),
                destination: destination.clone(),
                public_key: self.public_key,
                handle: self.handle.clone(),
                signer: Arc::clone(&self.signer),
            };
            tokio::spawn(channel.run(frames));
            self.channels.insert(host.clone(), (destination, sender));
        }
        self.channels[host]
            .1
            .try_send(frame)
            .map_err(|_| Refusal::Overloaded)
    }
}

/// Tells the signer that this channel will bring no more answers.
async fn report_lost(signer: &AsyncPacketSocket, host: &HostName, refusal: Refusal) {
    let reply = RelayReply::ChannelLost {
        channel: host.clone(),
        refusal,
    };
    if let Err(error) = signer.send(&reply.encode()).await {
        tracing::warn!(%error, "cannot tell the signer of a lost channel");
    }
}
