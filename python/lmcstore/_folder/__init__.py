# SPDX-License-Identifier: BSD-3-Clause
"""The folder of a run of many ranks: a pool for each rank, and one for the records of the run's snapshots.

A snapshot of the run is a record (`record`), committed in the pool of records, and a snapshot in the pool of each rank
that wrote tensors (`ranks`). Each rank *prepares* its snapshot: it is durable, but does not exist yet. The coordinator
then commits the record, and so the snapshot of the run. Readers read the parts that have a record, prepared or not; the
next save commits these and drops the others.

`store` reads the folder as one store (`joined`); `writing` writes it.
"""
