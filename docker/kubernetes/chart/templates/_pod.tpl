{{/* What the pods have in common. Each part takes the chart's root, some with a role beside it. */}}

{{/* (dict "root" $ "role" "worker") */}}
{{- define "tfdist.labels" -}}
{{ include "tfdist.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{/* The same. */}}
{{- define "tfdist.selector" -}}
app.kubernetes.io/name: tfdist
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "tfdist.podSettings" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "tfdist.containerSettings" -}}
imagePullPolicy: {{ .Values.imagePullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* (list name source): a volume that is an empty folder where no source is given. */}}
{{- define "tfdist.volume" -}}
- name: {{ index . 0 }}
  {{- if index . 1 }}
  {{- toYaml (index . 1) | nindent 2 }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}

{{- define "tfdist.jobVolume" -}}
{{- $code := dict "configMap" (dict "name" (printf "%s-code" .Release.Name)) -}}
{{ include "tfdist.volume" (list "job" (.Values.volumes.job | default $code)) }}
{{- end }}

{{/* (list name size): a folder in memory. */}}
{{- define "tfdist.memory" -}}
- name: {{ index . 0 }}
  emptyDir:
    medium: Memory
    sizeLimit: {{ index . 1 }}
{{- end }}

{{/* (list root file ...): the keys of one side, from the Secret. The operator mounts its own. */}}
{{- define "tfdist.keysVolume" -}}
{{- $root := index . 0 -}}
- name: keys
  secret:
    secretName: {{ $root.Values.train.keys | default (printf "%s-keys" $root.Release.Name) }}
    # Readable by the user's group, which fsGroup makes its owner; by nobody else.
    defaultMode: 0440
    items:
      {{- range rest . }}
      - key: {{ . }}
        path: {{ . }}
      {{- end }}
{{- end }}
