"""Search: multi-hop questions over a corpus, its engines, and a retrieval server."""

from trajgym.envs.search._analysis import BM25Settings
from trajgym.envs.search._ann import HNSWSettings
from trajgym.envs.search._bm25 import BM25Engine, build_bm25
from trajgym.envs.search._build import IndexReport, build_index, check_index
from trajgym.envs.search._corpus import read_passages
from trajgym.envs.search._demo import tag_script, tool_script
from trajgym.envs.search._dense import DenseEngine, build_dense
from trajgym.envs.search._encoders import (
    CrossEncoder,
    Encoder,
    MiniLM,
    Reranker,
    SentenceEncoder,
)
from trajgym.envs.search._engine import Hit, Passage, SearchEngine, check_engine
from trajgym.envs.search._env import SearchEnv, SearchEnvBase, TagSearchEnv
from trajgym.envs.search._errors import (
    IndexMismatch,
    InvalidCorpus,
    NotRecorded,
    SearchUnavailable,
)
from trajgym.envs.search._fusion import FusedEngine
from trajgym.envs.search._judge import Judge
from trajgym.envs.search._mcp import McpEngine
from trajgym.envs.search._open import builtin_index, open_engine
from trajgym.envs.search._opensearch import OpenSearchEngine
from trajgym.envs.search._pages import PageFetcher, PageRefused
from trajgym.envs.search._pool import PooledEngine
from trajgym.envs.search._replay import RecordingEngine, ReplayEngine
from trajgym.envs.search._rerank import RerankedEngine
from trajgym.envs.search._retrieval import RetrievalClient
from trajgym.envs.search._score import AnswerScore, normalize_answer, score_answer
from trajgym.envs.search._server import search_app, serve
from trajgym.envs.search._sqlite import SqliteEngine
from trajgym.envs.search._tasks import SearchRecord, load_tasks
from trajgym.envs.search._web import BraveEngine, SearxngEngine, SerperEngine, WebSearch
from trajgym.envs.search._wire import Patience

__all__ = [
    "AnswerScore",
    "BM25Engine",
    "BM25Settings",
    "BraveEngine",
    "CrossEncoder",
    "DenseEngine",
    "Encoder",
    "FusedEngine",
    "HNSWSettings",
    "Hit",
    "IndexMismatch",
    "IndexReport",
    "InvalidCorpus",
    "Judge",
    "McpEngine",
    "MiniLM",
    "NotRecorded",
    "OpenSearchEngine",
    "PageFetcher",
    "PageRefused",
    "Passage",
    "Patience",
    "PooledEngine",
    "RecordingEngine",
    "ReplayEngine",
    "RerankedEngine",
    "Reranker",
    "RetrievalClient",
    "SearchEngine",
    "SearchEnv",
    "SearchEnvBase",
    "SearchRecord",
    "SearchUnavailable",
    "SearxngEngine",
    "SentenceEncoder",
    "SerperEngine",
    "SqliteEngine",
    "TagSearchEnv",
    "WebSearch",
    "build_bm25",
    "build_dense",
    "build_index",
    "builtin_index",
    "check_engine",
    "check_index",
    "load_tasks",
    "normalize_answer",
    "open_engine",
    "read_passages",
    "score_answer",
    "search_app",
    "serve",
    "tag_script",
    "tool_script",
]
