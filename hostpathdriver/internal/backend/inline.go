package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// inline is what an inline volume is, beside its use.
type inline struct {
	Size       int64             `json:"size"`
	Pool       string            `json:"pool,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	// Pod names the pod for messages: "namespace/name".
	Pod string `json:"pod,omitempty"`
}

// CreateInline implements driverkit.Inliner.
func (n *Node) CreateInline(ctx context.Context, req *driverkit.InlineRequest) (*driverkit.Inlined, error) {
	if err := volume.CheckID(req.ID); err != nil {
		return nil, err
	}
	unlock, err := n.locks.Lock(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	parameters, err := volume.ParseInline(req.Attributes)
	if err != nil {
		return nil, err
	}
	u := n.get(req.ID)
	switch {
	case u != nil && (u.Inline == nil || !maps.Equal(u.Inline.Attributes, req.Attributes)):
		return nil, fmt.Errorf("publish inline volume %q: a volume of this id with other attributes is in use on this node: %w", req.ID, driverkit.ErrExists)
	case u == nil:
		if u, err = n.planInline(req, parameters); err != nil {
			return nil, fmt.Errorf("publish inline volume %q: %w", req.ID, err)
		}
		n.cfg.Step.at("inline:record")
		if err := n.uses.Put(u.ID, *u); err != nil {
			n.cfg.Pools.Release(u.Inline.Pool, u.Inline.Size)
			return nil, errors.Join(err, n.uses.Delete(u.ID))
		}
	}
	n.cfg.Step.at("inline:contents")
	if store := n.contents(u); gone(store.Place(req.ID, u.Form)) {
		if err := store.Create(req.ID, u.Form, u.Inline.Size, parameters); err != nil {
			return nil, exhausted(err)
		}
	}
	klog.FromContext(ctx).V(2).Info("Created inline volume", logging.KeyVolumeID, req.ID, logging.KeyPod, u.Inline.Pod, logging.KeyCapacity, u.Inline.Size)
	return &driverkit.Inlined{}, nil
}

// planInline decides on a new inline volume, and charges its pool.
func (n *Node) planInline(req *driverkit.InlineRequest, p volume.Parameters) (*use, error) {
	if req.Capability.Block {
		return nil, fmt.Errorf("volume_capability.access_type: block: inline volumes are mounted: %w", driverkit.ErrInvalid)
	}
	if _, err := n.cfg.View(req.ID); !errors.Is(err, driverkit.ErrNotFound) {
		return nil, errors.Join(err, fmt.Errorf("a persistent volume has this id: %w", driverkit.ErrExists))
	}
	form, err := volume.ChooseForm(p, []driverkit.Capability{req.Capability}, nil)
	if err != nil {
		return nil, err
	}
	if err := n.checkFSType(form.FSType); err != nil {
		return nil, err
	}
	size, kind, err := n.inlineSpace(form, p)
	if err != nil {
		return nil, err
	}
	pool, err := n.cfg.Pools.Reserve(kind, size)
	if err != nil {
		return nil, err
	}
	u := &use{ID: req.ID, Root: n.dir, Form: form, Inline: &inline{Size: size, Pool: pool, Attributes: req.Attributes}}
	if root := n.cfg.root(pool); root != "" {
		u.Root = NodeDir(root, n.cfg.NodeID) // Apart from the volumes of the controller, which looks for records of those.
		if gone(root) {
			err = fmt.Errorf("directory %s of pool %q is missing: is its disk mounted? %w", root, pool, driverkit.ErrUnavailable)
		} else {
			err = contents.Prepare(u.Root, contents.Volumes)
		}
	}
	if err != nil {
		n.cfg.Pools.Release(pool, size)
		return nil, err
	}
	if req.Pod.Name != "" {
		u.Inline.Pod = req.Pod.Namespace + "/" + req.Pod.Name
	}
	return u, nil
}

// inlineSpace decides on the size of an inline volume, in bytes, and on the kind of its pool, within the limits of the administrator.
func (n *Node) inlineSpace(form volume.Form, p volume.Parameters) (size int64, kind string, err error) {
	largest := n.cfg.MaxSize
	if n.cfg.MaxInlineSize > 0 {
		largest = min(largest, n.cfg.MaxInlineSize)
	}
	if size = p.Size; size == 0 {
		size = min(volume.DefaultInlineSize, largest)
	}
	if size, err = form.Size(driverkit.Range{Required: size}, largest); err != nil {
		return 0, "", err
	}
	kind = p.Pool
	if pools := n.cfg.InlinePools; len(pools) > 0 {
		if kind = cmp.Or(kind, pools[0]); !slices.Contains(pools, kind) {
			return 0, "", fmt.Errorf("volume_context: kind %q is not for inline volumes, which may have %q: %w", kind, pools, driverkit.ErrInvalid)
		}
	}
	return size, kind, nil
}

// deleteInline deletes an inline volume that is not staged any more: device, contents, then the record.
func (n *Node) deleteInline(ctx context.Context, u *use) error {
	if err := n.release(ctx, u); err != nil {
		return err
	}
	n.cfg.Step.at("inline:discard")
	store := n.contents(u)
	if err := store.Discard(ctx, u.ID); err != nil {
		return err
	}
	n.cfg.Step.at("inline:forget")
	if err := n.uses.Delete(u.ID); err != nil {
		return err
	}
	n.bin.owe(store, u.ID, func() { n.cfg.Pools.Release(u.Inline.Pool, u.Inline.Size) })
	klog.FromContext(ctx).V(2).Info("Deleted inline volume", logging.KeyVolumeID, u.ID, logging.KeyPod, u.Inline.Pod)
	n.cfg.Step.at("inline:purge")
	return n.bin.purge(ctx, store, u.ID)
}

// DeleteInline implements driverkit.Inliner.
func (n *Node) DeleteInline(ctx context.Context, req *driverkit.DeleteInlineRequest) error {
	id := req.ID
	unlock, err := n.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	u := n.get(id)
	if u != nil && u.Inline != nil {
		return n.deleteInline(ctx, u)
	}
	err = driverkit.NotFound("volume", id)
	if volume.CheckID(id) != nil {
		return err
	}
	for _, root := range append(n.cfg.poolNodes(), n.dir) { // What is left of a call that was interrupted.
		if err := n.bin.purge(ctx, contents.At(root, contents.Volumes, n.cfg.Mounter), id); err != nil {
			return err
		}
	}
	return err
}
