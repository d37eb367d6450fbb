package snapshotmetadata

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ = flag.Bool("rewrite", false, "write the documents that are generated") // commandtest.Golden looks it up
