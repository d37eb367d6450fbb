package array

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/longshore-csi/longshore/driverkit/state"
)

// Config is what an administrator sets up in an array.
type Config struct {
	// Dir is an existing directory, where everything is kept.
	Dir string
	// Pools have a place and a size.
	Pools []Pool
	// Hosts are the nodes that may be given LUNs, HostLimit is how many LUNs each may have.
	Hosts     []string
	HostLimit int
	// Passwords are those of the accounts.
	Passwords map[string]string
	// Loop has LUNs be loop devices of this machine, by losetup(8), as root; else they are plain files.
	Loop bool
}

// Array is the mock. Its state survives in Config.Dir.
type Array struct {
	Config

	mu      sync.Mutex
	luns    map[string]LUN
	records *state.Records[LUN]
}

// Open switches an array on: its LUNs are exported again, as a real array's would be.
func Open(ctx context.Context, c Config) (*Array, error) {
	records, err := state.Open[LUN](filepath.Join(c.Dir, "luns"), "LUN")
	if err != nil {
		return nil, err
	}
	luns, _, err := records.Load()
	if err != nil {
		return nil, err
	}
	a := &Array{Config: c, luns: luns, records: records}
	for _, l := range luns {
		for _, readOnly := range l.Hosts {
			if _, err := a.show(ctx, l.ID, readOnly); err != nil {
				return nil, err
			}
		}
	}
	return a, nil
}

// file has the contents of a LUN.
func (a *Array) file(id string) string { return filepath.Join(a.Dir, id) }

func (a *Array) save(l LUN) error {
	a.luns[l.ID] = l
	return a.records.Put(l.ID, l)
}

func (a *Array) pools() []Pool {
	pools := slices.Clone(a.Pools)
	for i, p := range pools {
		pools[i].Free = p.Size
		for _, l := range a.luns {
			if l.Place == p.Place {
				pools[i].Free -= l.Size
			}
		}
	}
	return pools
}

// reserve refuses what does not fit into a pool.
func (a *Array) reserve(place Place, size int64) error {
	for _, p := range a.pools() {
		if p.Place == place && p.Free >= size {
			return nil
		}
	}
	return fail(http.StatusInsufficientStorage, "pool %+v: has not %d bytes", place, size)
}

func (a *Array) find(r Ref) (LUN, error) {
	if l, ok := a.luns[r.ID]; ok && l.Kind == r.Kind {
		return l, nil
	}
	return LUN{}, missing(string(r.Kind), r.ID)
}

func (a *Array) list(kind Kind, name string) []LUN {
	list := []LUN{}
	for _, l := range a.luns {
		if l.Kind == kind && (name == "" || l.Name == name) {
			list = append(list, l)
		}
	}
	return list
}

// create copies what was synced to the device of the source, if any.
func (a *Array) create(l LUN) (LUN, error) {
	if found := a.list(l.Kind, l.Name); len(found) > 0 {
		return found[0], nil
	}
	l.ID, l.Created, l.Hosts = strings.ToLower(rand.Text()), time.Now(), map[string]bool{}
	var contents []byte
	if l.Source != (Ref{}) {
		source, err := a.find(l.Source)
		if err != nil {
			return LUN{}, err
		}
		l.Place, l.Size = source.Place, max(l.Size, source.Size)
		if contents, err = os.ReadFile(a.file(source.ID)); err != nil {
			return LUN{}, err
		}
	}
	if err := a.reserve(l.Place, l.Size); err != nil {
		return LUN{}, err
	}
	file := a.file(l.ID)
	if err := errors.Join(os.WriteFile(file, contents, 0o600), os.Truncate(file, l.Size)); err != nil {
		return LUN{}, err
	}
	return l, a.save(l)
}

func (a *Array) resize(r Ref, size int64) error {
	l, err := a.find(r)
	if err != nil || size <= l.Size {
		return err
	}
	if err := a.reserve(l.Place, size-l.Size); err != nil {
		return err
	}
	l.Size = size
	return errors.Join(os.Truncate(a.file(l.ID), size), a.save(l))
}

func (a *Array) delete(r Ref) error {
	l, err := a.find(r)
	switch {
	case err != nil:
		return err
	case len(l.Hosts) > 0:
		return fail(http.StatusLocked, "%s: %q is exported to %v", l.Kind, l.ID, slices.Sorted(maps.Keys(l.Hosts)))
	}
	if err := os.Remove(a.file(l.ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(a.luns, l.ID)
	return a.records.Delete(l.ID)
}

// export makes the device of a LUN, and notes the host.
func (a *Array) export(ctx context.Context, r Request) (path string, err error) {
	l, err := a.find(r.Ref)
	if err != nil {
		return "", err
	}
	if err := a.checkHost(l, r.Host, r.ReadOnly); err != nil {
		return "", err
	}
	if path, err = a.show(ctx, l.ID, r.ReadOnly); err != nil {
		return "", err
	}
	l.Hosts[r.Host] = r.ReadOnly
	return path, a.save(l)
}

func (a *Array) checkHost(l LUN, host string, readOnly bool) error {
	before, exported := l.Hosts[host]
	has := 0
	for _, other := range a.luns {
		if _, ok := other.Hosts[host]; ok {
			has++
		}
	}
	switch {
	case !slices.Contains(a.Hosts, host):
		return missing("hosts", host)
	case exported && before != readOnly:
		return fail(http.StatusConflict, "volume %q: is exported to host %q, read-only %t", l.ID, host, before)
	case !exported && has >= a.HostLimit:
		return fail(http.StatusTooManyRequests, "host %q: has %d LUNs, and may have no more", host, has)
	}
	return nil
}

// unexport removes the devices that no other host uses. Where one is still open on this machine, the host stays.
func (a *Array) unexport(ctx context.Context, r Request) error {
	l, err := a.find(r.Ref)
	if err != nil {
		return err
	}
	l.Hosts = maps.Clone(l.Hosts)
	maps.DeleteFunc(l.Hosts, func(host string, _ bool) bool { return r.Host == "" || host == r.Host })
	used := slices.Collect(maps.Values(l.Hosts))
	for _, readOnly := range []bool{false, true} {
		if slices.Contains(used, readOnly) {
			continue
		}
		switch err := a.hide(ctx, l.ID, readOnly); {
		case errors.Is(err, errInUse):
			return fail(http.StatusLocked, "volume %q: %v", l.ID, err)
		case err != nil:
			return err
		}
	}
	return a.save(l)
}
