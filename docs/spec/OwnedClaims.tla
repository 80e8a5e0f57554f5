----------------------------- MODULE OwnedClaims -----------------------------
(* Due items of an owned shard, sent to Kafka in transactions that carry the number of their claim. README.md beside
   this file explains it in plain words. One shard, whose items are due at the start. Time is not counted: ownership of
   a running process may end at any moment. `tests/spec/owned_claims.py` is the same model in Python. *)
EXTENDS Integers, FiniteSets

CONSTANTS
  Processes,   \* services
  Items,
  Limits,      \* how often each kind of fault may strike
  MaxFaults,   \* how many faults may strike in all
  Broken       \* the safeguard that is switched off, "none" = all are on

VARIABLES
  \* the store
  place,       \* by item: "due", "leased", "held" (in doubt), "done"
  claim,       \* by item: the number of the claim it is under, 0 = none
  claims,      \* the number of the last claim
  epoch,       \* the epoch of the shard
  owner,       \* who owns the shard: a process, or "nobody"
  \* the broker
  senders,     \* processes whose producer is not fenced
  last,        \* the last claim number that was committed, Unknown = the broker has none (any more)
  published,   \* by item: how often it was published in a committed transaction
  \* the processes
  stage,       \* by process: "out", "owned", "fenced", "read", "resolved", "ready"
  mine,        \* by process: the epoch of its ownership, 0 = none
  number,      \* by process: the last claim that was sent, as far as it knows
  asked,       \* by process: the number of a claim whose reply was lost, 0 = none
  suspect,     \* processes that gave up a claim call, and must end their open claims before they claim again
  held,        \* by process and item: the number of the claim in which it holds the item, 0 = none
  out,         \* by process: the items it holds that were sent
  doubt,       \* by process: "no", "asked", "fenced", "sent", "unsent", "again": how far it is in finding out about its claim
  strays,      \* items that were settled by a process whose claim was not present
  used         \* by kind of fault: how often it has struck

vars == <<place, claim, claims, epoch, owner, senders, last, published, stage, mine, number, asked, suspect, held, out,
          doubt, strays, used>>

Kinds == {"death", "leaseEnd", "step", "storeReply", "brokerReply", "refusal", "forget"}
Unknown == 0 - 1

Init ==
  /\ place = [i \in Items |-> "due"]
  /\ claim = [i \in Items |-> 0]
  /\ claims = 0
  /\ epoch = 1
  /\ owner = "nobody"
  /\ senders = {}
  /\ last = Unknown
  /\ published = [i \in Items |-> 0]
  /\ stage = [p \in Processes |-> "out"]
  /\ mine = [p \in Processes |-> 0]
  /\ number = [p \in Processes |-> 0]
  /\ asked = [p \in Processes |-> 0]
  /\ suspect = {}
  /\ held = [p \in Processes |-> [i \in Items |-> 0]]
  /\ out = [p \in Processes |-> {}]
  /\ doubt = [p \in Processes |-> "no"]
  /\ strays = {}
  /\ used = [k \in Kinds |-> 0]

Total(u) == u["death"] + u["leaseEnd"] + u["step"] + u["storeReply"] + u["brokerReply"] + u["refusal"] + u["forget"]
Strike(kind) ==
  /\ used[kind] < Limits[kind]
  /\ Total(used) < MaxFaults
  /\ used' = [used EXCEPT ![kind] = @ + 1]

Max(a, b) == IF a > b THEN a ELSE b

store == <<place, claim, claims, epoch, owner>>
broker == <<senders, last, published>>
mind == <<stage, mine, number, asked, suspect, held, out, doubt>>

\* The claims that the process has not sent, and the least of them.
Open(p) == {held[p][i] : i \in {j \in Items : held[p][j] # 0 /\ j \notin out[p]}}
Least(p) == CHOOSE n \in Open(p) : \A other \in Open(p) : n <= other
In(p, n) == {i \in Items : held[p][i] = n /\ i \notin out[p]}

\* The process has lost the shard: it sends no claim of this ownership any more.
Drop(p) ==
  /\ stage' = [stage EXCEPT ![p] = "out"]
  /\ mine' = [mine EXCEPT ![p] = 0]
  /\ number' = [number EXCEPT ![p] = 0]
  /\ asked' = [asked EXCEPT ![p] = 0]
  /\ suspect' = suspect \ {p}
  /\ held' = [held EXCEPT ![p] = [i \in Items |-> IF i \in out[p] THEN held[p][i] ELSE 0]]
  /\ doubt' = [doubt EXCEPT ![p] = "no"]
  /\ UNCHANGED out

\* ------------------------------------------------------------------------ ownership: by epoch, in the store

\* A shard that nobody owns, or whose owner is this process: then it is no new owner, and the epoch stays.
Acquire(p) ==
  /\ stage[p] = "out"
  /\ owner \in {p, "nobody"}
  /\ epoch' = IF owner = p THEN epoch ELSE epoch + 1
  /\ mine' = [mine EXCEPT ![p] = IF owner = p THEN epoch ELSE epoch + 1]
  /\ owner' = p
  /\ stage' = [stage EXCEPT ![p] = "owned"]
  /\ UNCHANGED <<place, claim, claims, broker, number, asked, suspect, held, out, doubt, strays, used>>

\* The ownership of another process has ended, perhaps without its knowledge: it was idle, or stood still.
AcquireEnded(p) ==
  /\ Strike("leaseEnd")
  /\ stage[p] = "out"
  /\ owner \notin {p, "nobody"}
  /\ epoch' = epoch + 1
  /\ mine' = [mine EXCEPT ![p] = epoch + 1]
  /\ owner' = p
  /\ stage' = [stage EXCEPT ![p] = "owned"]
  /\ UNCHANGED <<place, claim, claims, broker, number, asked, suspect, held, out, doubt, strays>>

\* The process asks the store whether it still owns the shard, and in which epoch.
Renew(p) ==
  /\ stage[p] # "out"
  /\ owner # p \/ mine[p] # epoch
  /\ IF owner = p
     THEN mine' = [mine EXCEPT ![p] = epoch] /\ UNCHANGED <<stage, number, asked, suspect, held, out, doubt>>
     ELSE Drop(p)
  /\ UNCHANGED <<store, broker, strays, used>>

\* ----------------------------------------------------------- a take-over: fence, read the number, end open claims

Fence(p) ==
  /\ stage[p] = "owned"
  /\ senders' = IF Broken = "fencing-skipped" THEN senders \cup {p} ELSE {p}
  /\ stage' = [stage EXCEPT ![p] = "fenced"]
  /\ UNCHANGED <<store, last, published, mine, number, asked, suspect, held, out, doubt, strays, used>>

ReadNumber(p) ==
  /\ stage[p] = "fenced"
  /\ number' = [number EXCEPT ![p] = last]
  /\ stage' = [stage EXCEPT ![p] = "read"]
  /\ UNCHANGED <<store, broker, mine, asked, suspect, held, out, doubt, strays, used>>

\* Ends the open claims but one: claims up to the number were sent, others were not. Unknown: all are held, in doubt.
EndOpen(committed, spared) ==
  LET ends == {i \in Items : place[i] = "leased" /\ claim[i] # spared}
  IN /\ place' = [i \in Items |-> IF i \notin ends THEN place[i]
                                  ELSE IF committed = Unknown THEN "held"
                                  ELSE IF claim[i] <= committed THEN "done" ELSE "due"]
     /\ claim' = [i \in Items |-> IF i \in ends THEN 0 ELSE claim[i]]
     /\ claims' = Max(claims, committed)

Resolve(p) ==
  /\ stage[p] = "read"
  /\ IF mine[p] = epoch \/ Broken = "epoch-not-compared-by-resolve"
     THEN /\ EndOpen(number[p], 0)
          /\ stage' = [stage EXCEPT ![p] = "resolved"]
          /\ number' = [number EXCEPT ![p] = IF @ = Unknown THEN claims ELSE @]
          /\ UNCHANGED <<mine, asked, suspect, held, out, doubt>>
     ELSE Drop(p) /\ UNCHANGED <<place, claim, claims>>
  /\ UNCHANGED <<epoch, owner, broker, strays, used>>

\* Commits the number without messages. A process that was fenced meanwhile begins the take-over again.
SendNumber(p) ==
  /\ stage[p] = "resolved"
  /\ IF p \in senders
     THEN last' = number[p] /\ stage' = [stage EXCEPT ![p] = "ready"]
     ELSE stage' = [stage EXCEPT ![p] = "owned"] /\ UNCHANGED last
  /\ UNCHANGED <<store, senders, published, mine, number, asked, suspect, held, out, doubt, strays, used>>

\* --------------------------------------------------------------------------------------------------- claiming

TakeUnderClaim(p, batch) ==
  /\ stage[p] = "ready"
  /\ p \notin suspect
  /\ asked[p] = 0
  /\ mine[p] = epoch \/ Broken = "epoch-not-compared-by-claim"
  /\ batch # {}
  /\ \A i \in batch : place[i] = "due" /\ held[p][i] = 0
  /\ claims' = Max(claims, number[p]) + 1
  /\ place' = [i \in Items |-> IF i \in batch THEN "leased" ELSE place[i]]
  /\ claim' = [i \in Items |-> IF i \in batch THEN claims' ELSE claim[i]]
  /\ UNCHANGED <<epoch, owner, broker, stage, mine, number, suspect, out, doubt, strays>>

Claim(p, batch) ==
  /\ TakeUnderClaim(p, batch)
  /\ held' = [held EXCEPT ![p] = [i \in Items |-> IF i \in batch THEN claims' ELSE held[p][i]]]
  /\ UNCHANGED <<asked, used>>

ClaimReplyLost(p, batch) ==
  /\ Strike("storeReply")
  /\ TakeUnderClaim(p, batch)
  /\ asked' = [asked EXCEPT ![p] = claims']
  /\ UNCHANGED held

\* The repeat gets the first answer. Without a token it would be a new claim: the items of the first are forgotten.
RepeatClaim(p) ==
  /\ asked[p] # 0
  /\ held' = IF Broken = "claim-without-token" THEN held
             ELSE [held EXCEPT ![p] = [i \in Items |-> IF claim[i] = asked[p] THEN asked[p] ELSE held[p][i]]]
  /\ asked' = [asked EXCEPT ![p] = 0]
  /\ UNCHANGED <<store, broker, stage, mine, number, suspect, out, doubt, strays, used>>

GiveUpClaim(p) ==
  /\ asked[p] # 0
  /\ asked' = [asked EXCEPT ![p] = 0]
  /\ suspect' = suspect \cup {p}
  /\ UNCHANGED <<store, broker, stage, mine, number, held, out, doubt, strays, used>>

\* After a claim call that got no answer: ends the open claims, but not the one that may be on its way to the broker.
ResolveOwn(p) ==
  /\ stage[p] = "ready"
  /\ p \in suspect
  /\ mine[p] = epoch
  /\ LET spared == IF Open(p) = {} THEN 0 ELSE Least(p)
     IN /\ EndOpen(number[p], spared)
        /\ held' = [held EXCEPT ![p] = [i \in Items |-> IF i \in out[p] \/ held[p][i] = spared
                                                        THEN held[p][i] ELSE 0]]
  /\ suspect' = suspect \ {p}
  /\ UNCHANGED <<epoch, owner, broker, stage, mine, number, asked, out, doubt, strays, used>>

\* --------------------------------------------------------------------- sending: messages and number, or nothing

MaySend(p, n) ==
  /\ stage[p] = "ready"
  /\ doubt[p] = "no"
  /\ n \in Open(p)
  /\ n = Least(p) \/ Broken = "sent-out-of-order"

Commit(p, n) ==
  /\ published' = [i \in Items |-> published[i] + IF i \in In(p, n) THEN 1 ELSE 0]
  /\ last' = IF Broken = "number-not-in-the-transaction" THEN last ELSE n
  /\ UNCHANGED <<store, senders>>

Send(p, n) ==
  /\ MaySend(p, n)
  /\ IF p \in senders
     THEN /\ Commit(p, n)
          /\ out' = [out EXCEPT ![p] = @ \cup In(p, n)]
          /\ number' = [number EXCEPT ![p] = Max(@, n)]
          /\ UNCHANGED <<stage, mine, asked, suspect, held, doubt>>
     ELSE Drop(p) /\ UNCHANGED <<store, broker>>
  /\ UNCHANGED <<strays, used>>

\* The broker has committed, and its reply was lost. Without the question the process would send again.
SendReplyLost(p, n) ==
  /\ Strike("brokerReply")
  /\ MaySend(p, n)
  /\ p \in senders
  /\ Commit(p, n)
  /\ doubt' = [doubt EXCEPT ![p] = IF Broken = "doubt-not-asked" THEN "no" ELSE "asked"]
  /\ UNCHANGED <<stage, mine, number, asked, suspect, held, out, strays>>

\* The broker did not get the request to commit, and the process does not know that.
SendUnsure(p, n) ==
  /\ Strike("brokerReply")
  /\ MaySend(p, n)
  /\ doubt' = [doubt EXCEPT ![p] = "asked"]
  /\ UNCHANGED <<store, broker, stage, mine, number, asked, suspect, held, out, strays>>

\* A new producer ends the open transaction of the old one.
DoubtFence(p) ==
  /\ doubt[p] \in {"asked", "again"}
  /\ senders' = {p}
  /\ doubt' = [doubt EXCEPT ![p] = "fenced"]
  /\ UNCHANGED <<store, last, published, stage, mine, number, asked, suspect, held, out, strays, used>>

\* The answer: sent or not. It counts only when the store then says that the shard is still ours in this epoch.
DoubtRead(p) ==
  /\ doubt[p] = "fenced"
  /\ doubt' = [doubt EXCEPT ![p] = IF last # Unknown /\ Open(p) # {} /\ last >= Least(p) THEN "sent" ELSE "unsent"]
  /\ UNCHANGED <<store, broker, stage, mine, number, asked, suspect, held, out, strays, used>>

DoubtConfirm(p) ==
  /\ doubt[p] \in {"sent", "unsent"}
  /\ IF (owner = p /\ mine[p] = epoch) \/ Broken = "doubt-not-confirmed"
     THEN /\ doubt' = [doubt EXCEPT ![p] = "no"]
          /\ out' = (IF doubt[p] = "sent" THEN [out EXCEPT ![p] = @ \cup In(p, Least(p))] ELSE out)
          /\ number' = (IF doubt[p] = "sent" THEN [number EXCEPT ![p] = Least(p)] ELSE number)
          /\ UNCHANGED <<stage, mine, asked, suspect, held>>
     ELSE Drop(p)
  /\ UNCHANGED <<store, broker, strays, used>>

\* The store does not answer: the process asks again later. Its new producer can send.
DoubtWaits(p) ==
  /\ Strike("storeReply")
  /\ doubt[p] \in {"sent", "unsent"}
  /\ doubt' = [doubt EXCEPT ![p] = "again"]
  /\ UNCHANGED <<store, broker, stage, mine, number, asked, suspect, held, out, strays>>

\* ------------------------------------------------------------------------------------------------- settling

SettlePlace(p, i, target) ==
  IF claim[i] = held[p][i] \/ (Broken = "claim-number-not-compared" /\ place[i] = "leased")
  THEN /\ place' = [place EXCEPT ![i] = target]
       /\ claim' = [claim EXCEPT ![i] = 0]
       /\ strays' = IF claim[i] = held[p][i] THEN strays ELSE strays \cup {i}
  ELSE UNCHANGED <<place, claim, strays>>

Settle(p, i) ==
  /\ held[p][i] # 0
  /\ i \in out[p] \/ (Broken = "settle-before-send" /\ place[i] = "leased" /\ claim[i] = held[p][i])
  /\ SettlePlace(p, i, "done")
  /\ held' = IF i \in out[p] THEN [held EXCEPT ![p][i] = 0] ELSE held
  /\ out' = [out EXCEPT ![p] = @ \ {i}]
  /\ UNCHANGED <<claims, epoch, owner, broker, stage, mine, number, asked, suspect, doubt, used>>

\* The broker refuses the message, or a limit holds it back: it leaves the claim before the rest is sent.
Leave(p, i) ==
  /\ Strike("refusal")
  /\ doubt[p] = "no"
  /\ held[p][i] # 0
  /\ i \notin out[p]
  /\ SettlePlace(p, i, "due")
  /\ held' = [held EXCEPT ![p][i] = 0]
  /\ UNCHANGED <<claims, epoch, owner, broker, stage, mine, number, asked, suspect, out, doubt>>

\* --------------------------------------------------------------------------------------------------- faults

\* The process ends, and starts anew without memory and under another name.
Die(p) ==
  /\ Strike("death")
  /\ stage' = [stage EXCEPT ![p] = "out"]
  /\ mine' = [mine EXCEPT ![p] = 0]
  /\ number' = [number EXCEPT ![p] = 0]
  /\ asked' = [asked EXCEPT ![p] = 0]
  /\ suspect' = suspect \ {p}
  /\ held' = [held EXCEPT ![p] = [i \in Items |-> 0]]
  /\ out' = [out EXCEPT ![p] = {}]
  /\ doubt' = [doubt EXCEPT ![p] = "no"]
  /\ owner' = IF owner = p THEN "nobody" ELSE owner
  /\ senders' = senders \ {p}
  /\ UNCHANGED <<place, claim, claims, epoch, last, published, strays>>

ClockStep ==
  /\ Strike("step")
  /\ epoch' = epoch + 1
  /\ UNCHANGED <<place, claim, claims, owner, broker, mind, strays>>

\* The broker forgets the committed number. A working owner commits it again in time.
BrokerForgets ==
  /\ Strike("forget")
  /\ \A p \in Processes : stage[p] # "ready"
  /\ last # Unknown
  /\ last' = Unknown
  /\ UNCHANGED <<store, senders, published, mind, strays>>

\* Before the broker forgets the number, the owner commits it again, without messages. Not while it has an open claim:
\* that claim may have been sent, and its number would be lost.
Refresh(p) ==
  /\ Strike("forget")
  /\ stage[p] = "ready"
  /\ Open(p) = {} \/ (Broken = "refresh-in-doubt" /\ doubt[p] \in {"no", "again"})
  /\ p \in senders
  /\ last' = number[p]
  /\ UNCHANGED <<store, senders, published, mind, strays>>

AllDone == \A i \in Items : place[i] \in {"done", "held"}

\* Only a state in which all is done may be the last one: otherwise the checker reports a deadlock.
Finished == AllDone /\ UNCHANGED vars

Next ==
  \/ \E p \in Processes : \/ Acquire(p) \/ AcquireEnded(p) \/ Renew(p) \/ Fence(p) \/ ReadNumber(p) \/ Resolve(p)
                          \/ SendNumber(p) \/ RepeatClaim(p) \/ GiveUpClaim(p) \/ ResolveOwn(p)
                          \/ DoubtFence(p) \/ DoubtRead(p) \/ DoubtConfirm(p) \/ DoubtWaits(p) \/ Die(p) \/ Refresh(p)
  \/ \E p \in Processes, batch \in SUBSET Items : Claim(p, batch) \/ ClaimReplyLost(p, batch)
  \/ \E p \in Processes : \E n \in Open(p) : Send(p, n) \/ SendReplyLost(p, n) \/ SendUnsure(p, n)
  \/ \E p \in Processes, i \in Items : Settle(p, i) \/ Leave(p, i)
  \/ ClockStep \/ BrokerForgets
  \/ Finished

Spec == Init /\ [][Next]_vars

\* ------------------------------------------------------------------------------------------- what must hold

OnePlace ==
  \A i \in Items : /\ place[i] \in {"due", "leased", "held", "done"}
                   /\ (place[i] = "leased") <=> (claim[i] # 0)
                   /\ claim[i] <= claims

NeverLost == \A i \in Items : place[i] = "done" => published[i] > 0

EffectivelyOnce == \A i \in Items : published[i] <= 1

SettledUnderPresentClaim == strays = {}

\* While the broker knows a number, it tells of each open claim whether it was sent.
NumberTellsTheTruth ==
  last # Unknown => \A i \in Items : place[i] = "leased" => ((claim[i] <= last) <=> (published[i] > 0))

=============================================================================
