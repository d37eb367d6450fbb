package csiclient_test

import (
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/csikit/csiclient"
)

func TestDialRefusesBadAddress(t *testing.T) {
	if _, err := csiclient.Dial("csi/csi.sock", nil); err == nil || !strings.Contains(err.Error(), `"csi/csi.sock": the path of a unix socket must be absolute`) {
		t.Errorf("got %v", err)
	}
}
