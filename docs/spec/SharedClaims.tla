---------------------------- MODULE SharedClaims ----------------------------
(* Due items, claimed under leases by competing processes. README.md beside this file explains it in plain words.
   One shard of the store. Time is not counted: a lease may end when no running process keeps its items, or when
   the clock has stepped. `tests/spec/shared_claims.py` is the same model in Python. *)
EXTENDS Naturals, FiniteSets

CONSTANTS
  Processes,   \* dispatchers
  Items,
  Limits,      \* how often each kind of fault may strike
  MaxFaults,   \* how many faults may strike in all
  Broken       \* the safeguard that is switched off, "none" = all are on

VARIABLES
  producer,    \* by item: "idle", "asking" (no reply yet), "told" (the item is accepted)
  place,       \* by item: "none", "due", "leased", "done"
  claim,       \* by item: the number of the claim it is under, 0 = none
  ended,       \* items whose lease was ended by a step of the clock
  claims,      \* the number of the last claim
  epoch,       \* the epoch of the shard
  known,       \* by process: the epoch that it has read, 0 = none
  paused,      \* processes that stand still, or are cut off
  asked,       \* by process: the number of a claim whose reply was lost, 0 = none
  held,        \* by process and item: the number of the claim in which it holds the item, 0 = none
  sent,        \* by process: the items it holds whose publishing is confirmed
  published,   \* by item: how often it was published
  strays,      \* items that were settled by a process whose claim was not present
  outdated,    \* whether a claim was made in an outdated epoch
  used         \* by kind of fault: how often it has struck

vars == <<producer, place, claim, ended, claims, epoch, known, paused, asked, held, sent, published, strays,
          outdated, used>>

Kinds == {"death", "pause", "step", "storeReply", "brokerReply", "refusal"}
Numbers == 0..20

Init ==
  /\ producer = [i \in Items |-> "idle"]
  /\ place = [i \in Items |-> "none"]
  /\ claim = [i \in Items |-> 0]
  /\ ended = {}
  /\ claims = 0
  /\ epoch = 1
  /\ known = [p \in Processes |-> 0]
  /\ paused = {}
  /\ asked = [p \in Processes |-> 0]
  /\ held = [p \in Processes |-> [i \in Items |-> 0]]
  /\ sent = [p \in Processes |-> {}]
  /\ published = [i \in Items |-> 0]
  /\ strays = {}
  /\ outdated = FALSE
  /\ used = [k \in Kinds |-> 0]

Total(u) == u["death"] + u["pause"] + u["step"] + u["storeReply"] + u["brokerReply"] + u["refusal"]
Strike(kind) ==
  /\ used[kind] < Limits[kind]
  /\ Total(used) < MaxFaults
  /\ used' = [used EXCEPT ![kind] = @ + 1]

Runs(p) == p \notin paused
Ours(p, i) == held[p][i] # 0 /\ claim[i] = held[p][i]
LetGo(p, i) ==
  /\ held' = [held EXCEPT ![p][i] = 0]
  /\ sent' = [sent EXCEPT ![p] = @ \ {i}]

\* ------------------------------------------------------------------ a producer schedules an item, under a token

Schedule(i) ==
  /\ producer[i] = "idle"
  /\ producer' = [producer EXCEPT ![i] = "told"]
  /\ place' = [place EXCEPT ![i] = "due"]
  /\ UNCHANGED <<claim, ended, claims, epoch, known, paused, asked, held, sent, published, strays, outdated, used>>

ScheduleReplyLost(i) ==
  /\ Strike("storeReply")
  /\ producer[i] = "idle"
  /\ producer' = [producer EXCEPT ![i] = "asking"]
  /\ place' = [place EXCEPT ![i] = "due"]
  /\ UNCHANGED <<claim, ended, claims, epoch, known, paused, asked, held, sent, published, strays, outdated>>

\* The repeat gets the first answer. Without a token it stores the item again, when the item is no longer there.
RepeatSchedule(i) ==
  /\ producer[i] = "asking"
  /\ producer' = [producer EXCEPT ![i] = "told"]
  /\ place' = IF Broken = "schedule-without-token" /\ place[i] = "done"
              THEN [place EXCEPT ![i] = "due"] ELSE place
  /\ UNCHANGED <<claim, ended, claims, epoch, known, paused, asked, held, sent, published, strays, outdated, used>>

\* ------------------------------------------------------------------------------------------- a process claims

Look(p) ==
  /\ Runs(p)
  /\ known[p] # epoch
  /\ known' = [known EXCEPT ![p] = epoch]
  /\ UNCHANGED <<producer, place, claim, ended, claims, epoch, paused, asked, held, sent, published, strays,
                 outdated, used>>

TakeUnderClaim(p, batch) ==
  /\ Runs(p)
  /\ asked[p] = 0
  /\ batch # {}
  /\ \A i \in batch : place[i] = "due" /\ held[p][i] = 0
  /\ known[p] # 0
  /\ known[p] = epoch \/ Broken = "epoch-not-compared"
  /\ claims' = claims + 1
  /\ place' = [i \in Items |-> IF i \in batch THEN "leased" ELSE place[i]]
  /\ claim' = [i \in Items |-> IF i \in batch THEN claims + 1 ELSE claim[i]]
  /\ outdated' = (outdated \/ known[p] # epoch)
  /\ UNCHANGED <<producer, ended, epoch, known, paused, sent, published, strays>>

Claim(p, batch) ==
  /\ TakeUnderClaim(p, batch)
  /\ held' = [held EXCEPT ![p] = [i \in Items |-> IF i \in batch THEN claims + 1 ELSE held[p][i]]]
  /\ UNCHANGED <<asked, used>>

ClaimReplyLost(p, batch) ==
  /\ Strike("storeReply")
  /\ TakeUnderClaim(p, batch)
  /\ asked' = [asked EXCEPT ![p] = claims + 1]
  /\ UNCHANGED held

\* The repeat answers those items of the first answer that are still under the claim.
RepeatClaim(p) ==
  /\ Runs(p)
  /\ asked[p] # 0
  /\ held' = [held EXCEPT ![p] = [i \in Items |-> IF claim[i] = asked[p] THEN asked[p] ELSE held[p][i]]]
  /\ asked' = [asked EXCEPT ![p] = 0]
  /\ UNCHANGED <<producer, place, claim, ended, claims, epoch, known, paused, sent, published, strays, outdated, used>>

GiveUpClaim(p) ==
  /\ Runs(p)
  /\ asked[p] # 0
  /\ asked' = [asked EXCEPT ![p] = 0]
  /\ UNCHANGED <<producer, place, claim, ended, claims, epoch, known, paused, held, sent, published, strays,
                 outdated, used>>

\* First answers are kept for a minute. Only a process that stands still comes back later; its repeat claims anew.
ForgetAnswer(p) ==
  /\ ~Runs(p)
  /\ asked[p] # 0
  /\ asked' = [asked EXCEPT ![p] = 0]
  /\ UNCHANGED <<producer, place, claim, ended, claims, epoch, known, paused, held, sent, published, strays,
                 outdated, used>>

\* ------------------------------------------------------------------------- a process publishes, and settles

Publish(p, i) ==
  /\ Runs(p)
  /\ held[p][i] # 0
  /\ i \notin sent[p]
  /\ published' = [published EXCEPT ![i] = @ + 1]
  /\ sent' = [sent EXCEPT ![p] = @ \cup {i}]
  /\ UNCHANGED <<producer, place, claim, ended, claims, epoch, known, paused, asked, held, strays, outdated, used>>

PublishReplyLost(p, i) ==
  /\ Strike("brokerReply")
  /\ Runs(p)
  /\ held[p][i] # 0
  /\ i \notin sent[p]
  /\ published' = [published EXCEPT ![i] = @ + 1]
  /\ UNCHANGED <<producer, place, claim, ended, claims, epoch, known, paused, asked, held, sent, strays, outdated>>

\* An answer says that the item is under the claim no longer, or the lease is extended.
Extend(p, i) ==
  /\ Runs(p)
  /\ held[p][i] # 0
  /\ i \in ended \/ ~Ours(p, i)
  /\ IF Ours(p, i)
     THEN ended' = ended \ {i} /\ UNCHANGED <<held, sent>>
     ELSE LetGo(p, i) /\ UNCHANGED ended
  /\ UNCHANGED <<producer, place, claim, claims, epoch, known, paused, asked, published, strays, outdated, used>>

SettlePlace(p, i, target) ==
  IF Ours(p, i) \/ (Broken = "claim-number-not-compared" /\ place[i] = "leased")
  THEN /\ place' = [place EXCEPT ![i] = target]
       /\ claim' = [claim EXCEPT ![i] = 0]
       /\ ended' = ended \ {i}
       /\ strays' = IF Ours(p, i) THEN strays ELSE strays \cup {i}
  ELSE UNCHANGED <<place, claim, ended, strays>>

MaySettle(p, i) ==
  /\ Runs(p)
  /\ held[p][i] # 0
  /\ i \in sent[p] \/ Broken = "settle-before-publish"

Settle(p, i) ==
  /\ MaySettle(p, i)
  /\ SettlePlace(p, i, "done")
  /\ LetGo(p, i)
  /\ UNCHANGED <<producer, claims, epoch, known, paused, asked, published, outdated, used>>

\* The process settles again, and learns that the item is under the claim no longer.
SettleReplyLost(p, i) ==
  /\ Strike("storeReply")
  /\ MaySettle(p, i)
  /\ Ours(p, i)
  /\ SettlePlace(p, i, "done")
  /\ UNCHANGED <<producer, claims, epoch, known, paused, asked, held, sent, published, outdated>>

\* The broker has refused the item: it waits again.
Release(p, i) ==
  /\ Strike("refusal")
  /\ Runs(p)
  /\ held[p][i] # 0
  /\ i \notin sent[p]
  /\ SettlePlace(p, i, "due")
  /\ LetGo(p, i)
  /\ UNCHANGED <<producer, claims, epoch, known, paused, asked, published, outdated>>

\* ------------------------------------------------------------------------------- leases end; faults strike

\* A running process settles or extends in time. So a lease ends only when no running process keeps the item.
Recover(i) ==
  /\ place[i] = "leased"
  /\ \/ i \in ended
     \/ \A p \in Processes : ~(Runs(p) /\ Ours(p, i))
     \/ Broken = "lease-not-tested"
  /\ place' = [place EXCEPT ![i] = "due"]
  /\ claim' = [claim EXCEPT ![i] = 0]
  /\ ended' = ended \ {i}
  /\ UNCHANGED <<producer, claims, epoch, known, paused, asked, held, sent, published, strays, outdated, used>>

\* The process ends, and starts anew without memory.
Die(p) ==
  /\ Strike("death")
  /\ held' = [held EXCEPT ![p] = [i \in Items |-> 0]]
  /\ sent' = [sent EXCEPT ![p] = {}]
  /\ asked' = [asked EXCEPT ![p] = 0]
  /\ known' = [known EXCEPT ![p] = 0]
  /\ paused' = paused \ {p}
  /\ UNCHANGED <<producer, place, claim, ended, claims, epoch, published, strays, outdated>>

Pause(p) ==
  /\ Strike("pause")
  /\ Runs(p)
  /\ paused' = paused \cup {p}
  /\ UNCHANGED <<producer, place, claim, ended, claims, epoch, known, asked, held, sent, published, strays, outdated>>

Wake(p) ==
  /\ ~Runs(p)
  /\ paused' = paused \ {p}
  /\ UNCHANGED <<producer, place, claim, ended, claims, epoch, known, asked, held, sent, published, strays,
                 outdated, used>>

StepForward ==
  /\ Strike("step")
  /\ epoch' = epoch + 1
  /\ ended' = {i \in Items : place[i] = "leased"}
  /\ UNCHANGED <<producer, place, claim, claims, known, paused, asked, held, sent, published, strays, outdated>>

StepBack ==
  /\ Strike("step")
  /\ epoch' = epoch + 1
  /\ UNCHANGED <<producer, place, claim, ended, claims, known, paused, asked, held, sent, published, strays, outdated>>

AllDone == \A i \in Items : producer[i] = "told" /\ place[i] = "done"

\* Only a state in which all is done may be the last one: otherwise the checker reports a deadlock.
Finished == AllDone /\ UNCHANGED vars

Next ==
  \/ \E i \in Items : Schedule(i) \/ ScheduleReplyLost(i) \/ RepeatSchedule(i) \/ Recover(i)
  \/ \E p \in Processes : \/ Look(p) \/ RepeatClaim(p) \/ GiveUpClaim(p) \/ ForgetAnswer(p)
                          \/ Die(p) \/ Pause(p) \/ Wake(p)
  \/ \E p \in Processes, batch \in SUBSET Items : Claim(p, batch) \/ ClaimReplyLost(p, batch)
  \/ \E p \in Processes, i \in Items : \/ Publish(p, i) \/ PublishReplyLost(p, i) \/ Extend(p, i)
                                       \/ Settle(p, i) \/ SettleReplyLost(p, i) \/ Release(p, i)
  \/ StepForward \/ StepBack
  \/ Finished

Spec == Init /\ [][Next]_vars

\* ------------------------------------------------------------------------------------------- what must hold

OnePlace ==
  \A i \in Items : /\ place[i] \in {"none", "due", "leased", "done"}
                   /\ (place[i] = "leased") <=> (claim[i] # 0)
                   /\ claim[i] <= claims
                   /\ i \in ended => place[i] = "leased"

NeverLost ==
  \A i \in Items : /\ producer[i] # "idle" => place[i] # "none"
                   /\ place[i] = "done" => published[i] > 0

SettledUnderPresentClaim == strays = {}

ClaimedInPresentEpoch == ~outdated

DuplicatesNeedAFault ==
  \A i \in Items : published[i] <= 1 + used["death"] + used["pause"] + used["step"] + used["brokerReply"]

=============================================================================
