//! Keeps tickets full, and opens the next session before the present one's tokens are used up.

use std::io;
use std::sync::Arc;

use usher_proto::refusal::Refusal;

use super::Signer;
use super::closing::close_replaced;
use super::lease::Use;
use super::open::{Opening, ask_for_tokens, open_connection};
use super::reports;
use super::sessions::{Pair, purpose};
use super::tickets::TokenPermit;

/// Fills tickets as they are used up, and renews their sessions.
pub async fn keep_filled(signer: Arc<Signer>) -> io::Result<()> {
    let Some(kernel) = &signer.tickets.kernel else {
        return std::future::pending().await;
    };
    let renew_all = |wanted| {
        for (pair, permit) in signer.tickets.refill(kernel, wanted) {
            renew(&signer, pair, permit);
        }
    };
    let wanted = kernel.wanted_descriptor();
    reports::each("tickets", wanted, || kernel.wanted(), renew_all).await
}

/// Renews a session without a ticket because tokens did not pass a while ago: the next session may get one.
pub fn renew_for_tokens(signer: &Arc<Signer>, pair: &Pair) {
    if let Some(permit) = signer.tickets.claim(pair.ticket_key()) {
        renew(signer, pair.clone(), permit);
    }
}

/// Opens a session and a ticket in the background, to replace those that are nearly used up. Not
/// for users who sign by an agent: they are asked to touch a security key only when one of their
/// connections waits for it. Their next session opens when this one's tokens and elements are used
/// up.
fn renew(signer: &Arc<Signer>, pair: Pair, permit: TokenPermit) {
    let signer = Arc::clone(signer);
    tokio::spawn(async move {
        if let Err(refusal) = try_to_renew(&signer, &pair, permit).await {
            tracing::info!(user = %pair.key.user, host = %pair.key.host,
                service = %pair.key.service, reason = refusal.name(),
                "cannot renew a session for new tokens: {refusal}");
        }
    });
}

/// On failure the present session continues.
async fn try_to_renew(
    signer: &Arc<Signer>,
    pair: &Pair,
    permit: TokenPermit,
) -> Result<(), Refusal> {
    let configuration = signer.configuration.get();
    let purpose = purpose(&pair.key, &configuration.checked.policy);
    if signer.keys.is_agents(&pair.key.user, purpose) {
        return Ok(());
    }
    permit.has_come().await;
    let lease = signer.lease(pair.clone(), Use::Session)?;
    let (session, openable) =
        open_connection(signer, &lease, None, &mut Opening::default()).await?;
    let slot = signer.sessions.slot(&pair.key);
    let former = slot.lock().await.replace(session).map(|former| former.id);
    let replaced = ask_for_tokens(signer, &lease, openable).await;
    drop(permit);
    // The slot's and the ticket's former session are the same, unless another was opened meanwhile.
    for session in former
        .into_iter()
        .chain(replaced.filter(|_| replaced != former))
    {
        close_replaced(signer, pair.clone(), session);
    }
    Ok(())
}
