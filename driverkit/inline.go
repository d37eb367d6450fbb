package driverkit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// Inliner has inline volumes: they are part of a pod, live as long as it, and are created, used and deleted on its node (KEP-596). Kubelets recognize them by the CSIDriver, which must have
// podInfoOnMount: true, and Ephemeral among its volumeLifecycleModes.
type Inliner interface {
	// CreateInline makes the volume of a pod under the id that the CO gives. Stage and Unstage follow as for other volumes.
	// Errors: ErrInvalid for an attribute that is not known, ErrExhausted.
	CreateInline(ctx context.Context, req *InlineRequest) (*Inlined, error)
	// DeleteInline deletes the volume, which its pod does not use any more. NotFound of it is success. CSI has no secrets here.
	DeleteInline(ctx context.Context, req *DeleteInlineRequest) error
}

// InlineRequest asks for an inline volume.
type InlineRequest struct {
	// ID is the id that the volume will have.
	ID string
	// Attributes are those of the pod's volume. Users choose them: they must give no more than their author may have.
	Attributes map[string]string
	// Pod is the pod of the volume.
	Pod Pod
	// Capability is how the volume is to be used.
	Capability Capability
	// Secrets are those of the pod's volume.
	Secrets Secrets
	// Tokens are those of the pod's service account, by audience, of CSIDrivers with tokenRequests.
	Tokens map[string]Token
}

// Inlined is the result of CreateInline.
type Inlined struct{}

// DeleteInlineRequest asks to delete an inline volume.
type DeleteInlineRequest struct {
	// ID is that of the InlineRequest.
	ID string
}

// Pod is the pod that a volume is made for. It is what the kubelet says.
type Pod struct {
	// Namespace, Name and UID are those of the object.
	Namespace, Name, UID string
	// ServiceAccount is the name of the pod's service account.
	ServiceAccount string
}

// Keys that the kubelet adds to the volume context (KEP-596, KEP-603).
const (
	keyEphemeral      = "csi.storage.k8s.io/ephemeral"
	keyPodName        = "csi.storage.k8s.io/pod.name"
	keyPodNamespace   = "csi.storage.k8s.io/pod.namespace"
	keyPodUID         = "csi.storage.k8s.io/pod.uid"
	keyServiceAccount = "csi.storage.k8s.io/serviceAccount.name"
)

// inlineOf returns what NodePublishVolume asks for where it is an inline volume, and nil for a persistent one. A value that is neither true nor false is
// an error: to guess would lose data.
func (n *node) inlineOf(req *csi.NodePublishVolumeRequest, capability Capability, tokens map[string]Token) (*InlineRequest, error) {
	context := req.GetVolumeContext()
	text, sent := context[keyEphemeral]
	if !sent {
		return nil, nil //nolint:nilnil // nil means a persistent volume
	}
	ephemeral, err := strconv.ParseBool(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("volume_context: %s=%q: must be true or false: %w", keyEphemeral, text, ErrInvalid)
	case !ephemeral:
		return nil, nil //nolint:nilnil // as above
	case n.driver.Inliner == nil:
		return nil, fmt.Errorf("volume_context: asks for an inline volume, and the driver has none; remove Ephemeral from the volumeLifecycleModes of its CSIDriver: %w", ErrInvalid)
	}
	return &InlineRequest{
		ID: req.GetVolumeId(), Attributes: ownContext(context), Capability: capability, Secrets: req.GetSecrets(), Tokens: tokens,
		Pod: Pod{Namespace: context[keyPodNamespace], Name: context[keyPodName], UID: context[keyPodUID], ServiceAccount: context[keyServiceAccount]},
	}, nil
}

// publishInline makes an inline volume and publishes it. The journal has the target first: whatever happens then, unpublish deletes the volume.
func (n *node) publishInline(ctx context.Context, want *target, inline *InlineRequest, req *StageRequest) error {
	want.Inline = true
	return n.publishUnstaged(ctx, want, req, func(ctx context.Context) error {
		_, err := n.driver.Inliner.CreateInline(ctx, inline)
		return err
	})
}

// deleteInline deletes the inline volume of a target.
func (n *node) deleteInline(ctx context.Context, id string) error {
	if n.driver.Inliner == nil {
		return fmt.Errorf("volume %q: is an inline volume, and the driver has none any more: run the one that has made it: %w", id, ErrPrecondition)
	}
	return ignoreNotFound(n.driver.Inliner.DeleteInline(ctx, &DeleteInlineRequest{ID: id}), id)
}

// collectInline deletes the inline volumes whose target path was removed while the driver did not run: their pods are gone, and no CO calls
// NodeUnpublishVolume for them. Where the directory of a target is missing, too, that of the CO may not be mounted yet, and the volume stays. A volume that
// cannot be deleted keeps no driver from starting.
func (n *node) collectInline(ctx context.Context) {
	for _, known := range n.journal.all() {
		for _, t := range known.Targets {
			if !t.Inline || !removed(t.Path) {
				continue
			}
			logger := klog.FromContext(ctx).WithValues(logging.KeyVolumeID, known.ID, logging.KeyTargetPath, t.Path)
			logger.Info("Deleting an inline volume whose target is gone")
			timed, cancel := context.WithTimeout(ctx, undoTimeout)
			if err := n.unpublish(timed, known.ID, t.Path); err != nil {
				logger.Error(err, "Could not delete an inline volume whose target is gone; the next start tries again")
			}
			cancel()
		}
	}
}

// removed reports whether a path was removed from its directory, which exists.
func removed(path string) bool {
	parent, err := os.Stat(filepath.Dir(path))
	if err != nil || !parent.IsDir() {
		return false
	}
	_, err = os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// undoTarget undoes the stage of a target that failed with a cause, and deletes the volume if it is inline. before is the record without them.
func (n *node) undoTarget(ctx context.Context, id string, t *target, before *record, cause error) error {
	return n.undo(ctx, id, t.Stage, cause, func(ctx context.Context) error {
		if t.Inline {
			if err := n.deleteInline(ctx, id); err != nil {
				return err
			}
		}
		return n.journal.save(before)
	})
}
