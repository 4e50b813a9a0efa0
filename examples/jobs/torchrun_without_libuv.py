#!/usr/bin/env python3
"""torchrun for a PyTorch that is built without libuv, such as Debian's since 2.6. Its own torchrun asks for libuv, and ends.

usage: python3 torchrun_without_libuv.py [torchrun's arguments]
"""

import functools

import torch.distributed

torch.distributed.TCPStore = functools.partial(torch.distributed.TCPStore, use_libuv=False)

from torch.distributed.run import main  # takes the class above

if __name__ == "__main__":
    main()
