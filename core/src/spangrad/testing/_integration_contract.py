"""The contract every integration keeps, as tests to be subclassed."""

from __future__ import annotations

from spangrad.testing._contract._attaching import AttachingChecks
from spangrad.testing._contract._calling import CallingChecks
from spangrad.testing._contract._neighbours import NeighbourChecks
from spangrad.testing._contract._recording import RecordingChecks
from spangrad.testing._contract._sharing import SharingChecks


class IntegrationContract(CallingChecks, RecordingChecks, SharingChecks, NeighbourChecks, AttachingChecks):
    """Tests of an integration with its real framework, over real sockets, against a gateway whose model follows a script.

    Subclass it as `TestXxxContract` in a test module, and fill in what `ContractSubject` (in `spangrad.testing`) lists: how agents
    are built and asked in the framework's own idiom. Fixtures that the framework needs (environment variables, its own global
    state put back) go into the subclass. The tests are coroutines: run them with pytest-asyncio in its auto mode. The instrumentors
    named in `ContractSubject.instrumentors` have to be installed.

    What is checked:

    - calls: each is in the store exactly once, in its rollout, under its agent, however it was made; structured output, caches,
      retries, errors and streams closed early; a judge's calls are no transitions; transitions have the exact ids and
      log-probabilities, and those of the reference conversation are equal to the byte for all integrations;
    - work: agents and tools with arguments, results, errors and call ids, below their true parents; handoffs, teams, branches;
    - the program: what it gets returned, raised and streamed is the same with the integration and without;
    - sharing: eight rollouts at the same time with one solver, in tasks, threads and executors, each own exactly their calls;
    - neighbours: the program's own instrumentation and tracer provider work as ever, and nothing is doubled;
    - attaching: any number of times, in any order, and everything is restored; nothing is kept outside of rollouts.
    """
