// Package volume holds the decisions about one volume: what it is called, what CreateVolume is asked for,
// whether the answer is good, and its PersistentVolume. Everything here is pure: objects
// in, objects out. It does not call the driver or the API; package claim does.
package volume

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/flagset"
)

// Naming makes the names of volumes and of their PersistentVolumes.
type Naming struct {
	// Prefix comes before the dash; it may not be empty.
	Prefix string
	// UUIDLength is the number of characters of the claim's UID, its dashes dropped, that go into the
	// name; a negative number takes the whole UID as it is.
	UUIDLength int
}

// uuidDigits is the length of a UUID without dashes.
const uuidDigits = 32

// Validate reports whether names can be made.
func (n Naming) Validate() error {
	return errors.Join(
		flagset.Require(n.Prefix != "", "volume-name-prefix", n.Prefix, "must not be empty"),
		flagset.Require(n.UUIDLength == -1 || n.UUIDLength >= 1 && n.UUIDLength <= uuidDigits, "volume-name-uuid-length", n.UUIDLength,
			fmt.Sprintf("must be between 1 and %d, or -1 for the whole UID with dashes", uuidDigits)),
	)
}

// Name returns the name of the volume of the claim with this UID. One claim always gets the same name, so
// that CreateVolume, which is idempotent by name, never makes two volumes for one claim.
func (n Naming) Name(claim types.UID) string {
	id := string(claim)
	if n.UUIDLength >= 0 {
		id = strings.ReplaceAll(id, "-", "")
		id = id[:min(n.UUIDLength, len(id))]
	}
	return n.Prefix + "-" + id
}
