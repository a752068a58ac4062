//! Hash chains in store. Making a session's two chains takes as long as several signatures, and they
//! do not depend on the user, so they are made before they are needed.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use usher_proto::chain::Chain;
use usher_proto::refusal::Refusal;
use usher_proto::token::TokenChain;

/// Connections per signature. Making a chain costs about 44 ns per element.
pub const LENGTH: u32 = 1024;
/// Pairs in store, of half a kilobyte each. With more users at once, further pairs are made on demand.
const STORE: usize = 64;
/// The pause after a pair was taken, so that making the next one does not delay the opening of the
/// session.
const PAUSE: Duration = Duration::from_millis(20);

/// The chains of one session, with one salt.
pub type ChainPair = (Chain, TokenChain);

/// Chains in store.
#[derive(Default)]
pub struct Chains {
    store: Mutex<Vec<ChainPair>>,
    taken: Notify,
}

impl Chains {
    /// Unused chains: from the store, or made now.
    ///
    /// # Errors
    /// [`Refusal::SignerUnavailable`] when the kernel returns no random numbers.
    pub fn take(&self) -> Result<ChainPair, Refusal> {
        let pair = self.store.lock().pop();
        self.taken.notify_one();
        pair.map_or_else(make, Ok)
    }

    /// Keeps the store full.
    pub async fn keep_full(&self) {
        loop {
            while self.store.lock().len() < STORE {
                // Not on the reactor's thread, so that other requests do not wait for it.
                match tokio::task::spawn_blocking(make).await {
                    Ok(Ok(pair)) => self.store.lock().push(pair),
                    // The log has the error; the next request tries again.
                    Ok(Err(_)) => break,
                    Err(error) => {
                        tracing::error!(%error, "cannot make token chains");
                        break;
                    }
                }
            }
            self.taken.notified().await;
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn make() -> Result<ChainPair, Refusal> {
    let chain = Chain::generate(LENGTH, random()?, random()?);
    let tokens = TokenChain::generate(LENGTH, random()?, chain.salt());
    Ok((chain, tokens))
}

/// Random bytes from the kernel.
///
/// # Errors
/// [`Refusal::SignerUnavailable`]; the log says why.
pub fn random<const N: usize>() -> Result<[u8; N], Refusal> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        tracing::error!(%error, "the kernel gives no random numbers");
        Refusal::SignerUnavailable
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn without_a_store_chains_are_made_when_they_are_asked_for() {
        let chains = Chains::default();
        let (chain, tokens) = chains.take().unwrap();
        assert_eq!((chain.length(), tokens.length()), (LENGTH, LENGTH));
        assert_ne!(chain.anchor(), chains.take().unwrap().0.anchor());
    }

    #[tokio::test]
    async fn the_store_is_filled_and_gives_each_pair_once() {
        let chains = Arc::new(Chains::default());
        let keeping = tokio::spawn({
            let chains = Arc::clone(&chains);
            async move { chains.keep_full().await }
        });
        let is_full = async || {
            while chains.store.lock().len() < STORE {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        is_full().await;
        let anchors: std::collections::HashSet<_> = (0..STORE + 1)
            .map(|_| chains.take().unwrap().0.anchor())
            .collect();
        assert_eq!(anchors.len(), STORE + 1);
        // The store is filled again.
        is_full().await;
        keeping.abort();
    }
}
