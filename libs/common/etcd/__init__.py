"""etcd: keys and transactions, leases, leadership, and a watch that resumes.

`EtcdClient` is the way in; see docs/libs/etcd.md.
"""

from libs.common.etcd.binary import find_etcd as find_etcd
from libs.common.etcd.client import DEFAULT_TIMEOUT_S as DEFAULT_TIMEOUT_S
from libs.common.etcd.client import EtcdClient as EtcdClient
from libs.common.etcd.leadership import Leadership as Leadership
from libs.common.etcd.leadership import Term as Term
from libs.common.etcd.lease import Lease as Lease
from libs.common.etcd.types import OUTCOME_UNKNOWN as OUTCOME_UNKNOWN
from libs.common.etcd.types import Compacted as Compacted
from libs.common.etcd.types import Compare as Compare
from libs.common.etcd.types import Delete as Delete
from libs.common.etcd.types import Event as Event
from libs.common.etcd.types import Get as Get
from libs.common.etcd.types import KeyValue as KeyValue
from libs.common.etcd.types import Op as Op
from libs.common.etcd.types import Put as Put
from libs.common.etcd.types import Range as Range
from libs.common.etcd.types import TxnResult as TxnResult
from libs.common.etcd.types import WatchBatch as WatchBatch
from libs.common.etcd.wire import MAX_REQUEST_BYTES as MAX_REQUEST_BYTES
from libs.common.etcd.wire import MAX_TXN_OPERATIONS as MAX_TXN_OPERATIONS
from libs.common.etcd.wire import fits as fits
