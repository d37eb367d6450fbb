package driverkit

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// IDFromName returns an id that follows from the name of a volume or snapshot: 32 characters, the same for the same name. It is for a storage system that
// lets the driver choose ids: Create then finds the object of a name without a list of names.
func IDFromName(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}

// FileName returns the name of the file or directory of the object with an id, which comes from outside and may be "..", have slashes, or look like an
// option: the id itself if it consists of letters, digits, '.', '-' and '_' and begins with a letter, a digit or '_'; else a hash of it.
func FileName(id string) string {
	const first = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
	if id != "" && len(id) <= maxName && strings.Contains(first, id[:1]) && strings.Trim(id, first+".-") == "" {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "id-" + hex.EncodeToString(sum[:])
}
