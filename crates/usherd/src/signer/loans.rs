//! The users' ssh-agents. A process of the user (`usher agent`) lends the user's agent as long as it is
//! connected to the signer, and has the agent sign what the signer requests. The signer holds no descriptor
//! of an agent and can have it sign only authenticators. A signature counts only if it verifies.
//!
//! A user has one loan, the newest. It handles one request at a time, and ends if an answer takes
//! longer than [`ANSWER`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use usher_base::UserName;
use usher_daemon::quota::{Quota, Taken};
use usher_proto::lending::{FromLender, MAX_LENDING_PACKET, ToLender};
use usher_proto::refusal::Refusal;

use super::Signer;
use crate::local_callers::LocalCaller;

/// Time limit of an agent: the user may have to touch a security key. The signed statement is fresh
/// for 60 s.
const ANSWER: Duration = Duration::from_secs(30);
/// The time that a request waits for earlier ones.
const TURN: Duration = Duration::from_secs(15);
/// Limit of one user's connections that wait for the user's agent at the same time. The proxy has a
/// thread for each.
const WAITING_PER_USER: usize = 64;

/// All loans: at most one for each user who is registered to sign by an agent.
pub struct Loans {
    state: Arc<Mutex<State>>,
    /// The waiting connections of each user.
    waiting: Quota<u32>,
}

impl Default for Loans {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            waiting: Quota::new(usize::MAX, WAITING_PER_USER),
        }
    }
}

#[derive(Default)]
struct State {
    last_number: u64,
    /// By user id.
    lent: HashMap<u32, Loan>,
    /// The last time that a user's agent did not sign, by user id.
    not_signed: HashMap<u32, Instant>,
}

struct Loan {
    number: u64,
    user: UserName,
    turn: Arc<tokio::sync::Mutex<()>>,
    questions: mpsc::Sender<Question>,
    /// Dropped when another loan replaces this one.
    _present: oneshot::Sender<()>,
}

struct Question {
    packet: Vec<u8>,
    answer: oneshot::Sender<FromLender>,
}

/// The right to use a user's agent, which one task has at a time.
pub struct AgentPermit {
    questions: mpsc::Sender<Question>,
    _turn: OwnedMutexGuard<()>,
}

impl Loans {
    /// Waits for a turn at the user's agent, so that the statement is made when it can be signed.
    ///
    /// # Errors
    /// [`Refusal::AgentUnavailable`] without a loan, [`Refusal::Overloaded`] when the turn does not
    /// come soon.
    pub async fn permit(&self, uid: u32) -> Result<AgentPermit, Refusal> {
        let (turn, questions) = {
            let state = self.state.lock();
            let loan = state.lent.get(&uid).ok_or(Refusal::AgentUnavailable)?;
            (Arc::clone(&loan.turn), loan.questions.clone())
        };
        let turn = timeout(TURN, turn.lock_owned()).await;
        Ok(AgentPermit {
            questions,
            _turn: turn.map_err(|_| Refusal::Overloaded)?,
        })
    }

    /// A place to wait while the user's agent signs; `None` if no agent is lent.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] when too many connections already wait.
    pub fn wait(&self, uid: u32) -> Result<Option<Taken<u32>>, Refusal> {
        if !self.state.lock().lent.contains_key(&uid) {
            return Ok(None);
        }
        let place = self.waiting.take(uid);
        place.map(Some).map_err(|_| Refusal::Overloaded)
    }

    /// Records that the user's agent did not sign.
    pub fn not_signed(&self, uid: u32) {
        self.state.lock().not_signed.insert(uid, Instant::now());
    }

    /// Whether a request to the user's agent has failed after `since`: that also answers a connection that
    /// has waited since then.
    pub fn has_not_signed(&self, uid: u32, since: Instant) -> bool {
        let state = self.state.lock();
        state.not_signed.get(&uid).is_some_and(|&then| then > since)
    }

    /// The users whose agents are lent.
    pub fn users(&self) -> HashSet<UserName> {
        let state = self.state.lock();
        state.lent.values().map(|loan| loan.user.clone()).collect()
    }

    /// The number of loans.
    pub fn len(&self) -> usize {
        self.state.lock().lent.len()
    }

    /// Enters a loan, and replaces a former one of the user.
    fn enter(&self, uid: u32, user: UserName) -> Entered {
        let (questions, asked) = mpsc::channel(1);
        let (present, replaced) = oneshot::channel();
        let mut state = self.state.lock();
        state.last_number += 1;
        let number = state.last_number;
        let loan = Loan {
            number,
            user,
            turn: Arc::default(),
            questions,
            _present: present,
        };
        state.lent.insert(uid, loan);
        Entered {
            all: Arc::clone(&self.state),
            uid,
            number,
            asked,
            replaced,
        }
    }
}

impl AgentPermit {
    /// Has the agent sign a statement with the key of this wire form. Returns the signature as the
    /// agent made it.
    ///
    /// # Errors
    /// [`Refusal::AgentUnavailable`] when the loan ends meanwhile, [`Refusal::AgentRefused`] when
    /// the agent does not sign.
    pub async fn ask(&self, public_key: Vec<u8>, statement: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let (answer, answered) = oneshot::channel();
        let sign = ToLender::Sign {
            public_key,
            statement,
        };
        let question = Question {
            packet: sign.encode(),
            answer,
        };
        let unavailable = |_| Refusal::AgentUnavailable;
        self.questions.send(question).await.map_err(unavailable)?;
        match answered.await.map_err(|_| Refusal::AgentUnavailable)? {
            FromLender::Signature(signature) => Ok(signature),
            FromLender::NotSigned => Err(Refusal::AgentRefused),
        }
    }
}

/// The lender's side of a loan.
struct Entered {
    all: Arc<Mutex<State>>,
    uid: u32,
    number: u64,
    asked: mpsc::Receiver<Question>,
    replaced: oneshot::Receiver<()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut state = self.all.lock();
        let own = state.lent.get(&self.uid).map(|loan| loan.number) == Some(self.number);
        if own {
            state.lent.remove(&self.uid);
        }
    }
}

/// The reason for the end of a loan.
enum End {
    Replaced,
    /// The lender has closed the connection.
    TakenBack,
    Refused(Refusal),
}

/// Serves a lending process until its loan ends.
pub async fn serve(signer: &Signer, mut caller: LocalCaller) {
    let (uid, pid) = (caller.peer.uid, caller.peer.pid);
    let may = match caller.descriptors() {
        [] => may_lend(signer, uid).await,
        _ => Err(Refusal::Malformed),
    };
    let user = match may {
        Ok(user) => user,
        Err(refusal) => {
            caller.log_refusal(refusal);
            return send(&caller, &ToLender::Refused(refusal)).await;
        }
    };
    let loan = signer.loans.enter(uid, user.clone());
    tracing::info!(%user, pid, "an agent is lent");
    send(&caller, &ToLender::Lent).await;
    match keep(loan, &mut caller).await {
        End::Replaced => {
            tracing::info!(%user, pid, "another process lends the user's agent");
            send(&caller, &ToLender::Replaced).await;
        }
        End::TakenBack => tracing::info!(%user, pid, "an agent is no longer lent"),
        End::Refused(refusal) => {
            tracing::warn!(%user, pid, reason = refusal.name(), "a loan is ended: {refusal}");
            send(&caller, &ToLender::Refused(refusal)).await;
        }
    }
}

/// Checks that the user signs by an agent on this host, and returns the user's name.
async fn may_lend(signer: &Signer, uid: u32) -> Result<UserName, Refusal> {
    let user = signer.names.of(uid).await?;
    let configuration = signer.configuration.get();
    if configuration.checked.disabled.contains(&user) {
        return Err(Refusal::DisabledUser);
    }
    match signer.keys.has_agent(&user, &configuration.checked.policy) {
        Ok(true) => Ok(user),
        Ok(false) => Err(Refusal::NoPrivateKey),
        Err(error) => {
            tracing::error!(%error, "cannot look at the users' keys");
            Err(Refusal::SignerUnavailable)
        }
    }
}

/// Passes requests to the lender until the loan ends.
async fn keep(mut loan: Entered, caller: &mut LocalCaller) -> End {
    let mut open: Option<(oneshot::Sender<FromLender>, Instant)> = None;
    loop {
        let silent = open.as_ref().map(|(_, until)| *until);
        tokio::select! {
            _ = &mut loan.replaced => return End::Replaced,
            Some(question) = loan.asked.recv(), if open.is_none() => {
                open = Some((question.answer, Instant::now() + ANSWER));
                caller.send(&question.packet, &[]).await;
            }
            received = caller.receive(MAX_LENDING_PACKET) => {
                let packet = match received {
                    Ok(packet) if packet.is_empty() => return End::TakenBack,
                    Ok(packet) => packet,
                    Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                        return End::Refused(Refusal::Oversized);
                    }
                    Err(_) => return End::TakenBack,
                };
                let asked = open.take().filter(|_| caller.descriptors().is_empty());
                let Some((answer, _)) = asked else {
                    return End::Refused(Refusal::Malformed);
                };
                match FromLender::decode(&packet) {
                    // The task that asked may no longer be waiting.
                    Ok(said) => drop(answer.send(said)),
                    Err(error) => return End::Refused(error.into()),
                }
            }
            () = sleep_until(silent.unwrap_or_else(Instant::now)), if silent.is_some() => {
                return End::Refused(Refusal::AgentRefused);
            }
        }
    }
}

async fn send(caller: &LocalCaller, packet: &ToLender) {
    caller.send(&packet.encode(), &[]).await;
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    fn enter(loans: &Loans, uid: u32) -> Entered {
        loans.enter(uid, "alice".parse().unwrap())
    }

    #[tokio::test]
    async fn the_newest_loan_counts_and_the_former_ones_end_leaves_it() {
        let loans = Loans::default();
        assert_eq!(
            loans.permit(1001).await.err(),
            Some(Refusal::AgentUnavailable)
        );
        let mut former = enter(&loans, 1001);
        let newer = enter(&loans, 1001);
        assert_eq!(former.replaced.try_recv(), Err(TryRecvError::Closed));
        assert_eq!(loans.len(), 1);
        drop(former);
        assert!(loans.wait(1001).unwrap().is_some() && loans.wait(1002).unwrap().is_none());
        assert!(loans.permit(1001).await.is_ok());
        drop(newer);
        assert!(loans.wait(1001).unwrap().is_none());
        assert_eq!(
            loans.permit(1001).await.err(),
            Some(Refusal::AgentUnavailable)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_turn_is_abandoned_and_delays_no_other_user() {
        let loans = Loans::default();
        let _both = [enter(&loans, 1001), enter(&loans, 1002)];
        let first = loans.permit(1001).await;
        assert!(first.is_ok());
        assert_eq!(loans.permit(1001).await.err(), Some(Refusal::Overloaded));
        assert!(loans.permit(1002).await.is_ok());
        drop(first);
        assert!(loans.permit(1001).await.is_ok());
    }

    #[tokio::test]
    async fn who_waits_when_the_loan_ends_is_told_so() {
        let loans = Loans::default();
        let loan = enter(&loans, 1001);
        let turn = loans.permit(1001).await.unwrap();
        drop(loan);
        let asked = turn.ask(vec![1], vec![2]).await;
        assert_eq!(asked, Err(Refusal::AgentUnavailable));
    }

    #[test]
    fn so_many_of_a_user_wait_and_no_more_and_another_user_does() {
        let loans = Loans::default();
        let _both = [enter(&loans, 1001), enter(&loans, 1002)];
        let mut waiting: Vec<_> = (0..WAITING_PER_USER)
            .map(|_| loans.wait(1001).unwrap())
            .collect();
        assert_eq!(loans.wait(1001).err(), Some(Refusal::Overloaded));
        assert!(loans.wait(1002).is_ok());
        waiting.pop();
        assert!(loans.wait(1001).is_ok());
    }
}
