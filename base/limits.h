/* All limits of the daemon. Each is enforced in the file that its comment names. Exceeding a limit
 * is an error that names it; values are never clamped silently. */
#ifndef BASE_LIMITS_H
#define BASE_LIMITS_H

/* base */
#define METRICS_LORAS_MAX 64 /* adapters with their own series (base/metrics.h) */
/* For uploads (base/disk_room.h): the bytes reserved in one step, and the part of a disk kept free
 * for jobs. That part is a twentieth of the disk, but at most a GiB. */
#define DISK_ROOM_STEP_BYTES ((uint64_t)64 << 20)
#define DISK_ROOM_KEPT_PART 20
#define DISK_ROOM_KEPT_BYTES ((uint64_t)1 << 30)

/* kernels */
#define TENSOR_MAX_RANK 4
/* Address space that must be free before OpenMP starts threads (kernels/team.c), and before oneDNN
 * generates a product's code (kernels/cpu/dnnl.c). OpenMP and oneDNN end the process if an
 * allocation fails. oneDNN keeps up to 2 MiB per product, and needs twice that while it generates
 * the code. */
#define TEAM_HEADROOM_BYTES ((size_t)8 << 20)
#define ONEDNN_HEADROOM_BYTES ((size_t)32 << 20)
/* Shapes of operations that a device's tuner distinguishes (kernels/tuner.h). SD-1.5 has about 130
 * at one image size. */
#define TUNER_SHAPES_MAX 8192

/* models: weight files (models/checkpoint/safetensors.c) */
#define CHECKPOINT_RESIDENT_BYTES (64u << 20) /* of mapped weights, while a model copies them */
#define FILE_MAPS_MAX 256                     /* files mapped at the same time */
#define SAFETENSORS_MAX_HEADER_BYTES (16u << 20)
#define SAFETENSORS_MAX_TENSORS 8192
#define SAFETENSORS_MAX_NAME_BYTES 256
#define ADAPTER_MAX_RANK 4096       /* models/adapter/adapter_shapes.c */
#define UNET_MAX_LAYERS_PER_BLOCK 8 /* models/unet.c */
#define CLIP_IMAGE_MAX_PX 1024      /* sides of a safety checker's input */
#define CONFIG_MAX_BYTES                                                                           \
    (16u << 20) /* any JSON file of a checkpoint; the largest is tokenizer.json */

/* models: tokenizers (models/tokenizer/tokenizer_vocab.c, models/tokenizer/tokenizer_special.c) */
#define TOKENIZER_MAX_TOKENS (1 << 20)
#define TOKENIZER_MAX_ADDED_TOKENS 1024

/* pictures. Reading the largest picture takes up to 9 bytes per pixel. */
#define PICTURE_FILE_MAX_BYTES (256u << 20)
#define PICTURE_SIDE_MAX_PX 16384
#define PICTURE_MAX_PIXELS 100000000
#define PNG_CHUNKS_MAX 256
#define PNG_MEMORY_MAX_BYTES (16u << 20) /* for libpng, besides the picture itself */
#define PNG_TEXTS_MAX_BYTES (32u << 20)  /* for libpng, while it reads a picture's texts */
#define JPEG_SCANS_MAX 64                /* each scan passes over the whole picture */

/* train: data sets (train/data/) */
#define DATASET_NAME_MAX_BYTES 128
#define DATASET_PICTURES_MAX (1 << 20)
#define DATASET_FILES_MAX (4 << 20)   /* of an archive */
#define DATASET_EMPTY_FILES_MAX 10000 /* and folders, before an archive's first picture */
/* An archive may unpack to this many times its own size, plus DATASET_INFLATES_BYTES. */
#define DATASET_INFLATES_TIMES 100
#define DATASET_INFLATES_BYTES ((uint64_t)1 << 30)
#define DATASET_MAX_BYTES ((uint64_t)256 << 30) /* of an archive, and of its unpacked files */
#define DATASET_CAPTIONS_MAX (4 << 20)
#define DATASET_REPEATS_MAX 10000
#define DATASET_SAMPLES_MAX (1 << 24)          /* in an epoch, with repeats */
#define DATASET_THREADS_MAX 64                 /* that read pictures */
#define DATASET_DECODE_BYTES ((size_t)1 << 30) /* of pictures being decoded, or one larger one */
#define READ_AHEAD_BYTES ((size_t)256 << 20)   /* for decoded pictures that wait */
#define DATASET_DECODED_AT_ONCE_PX (1 << 26)   /* decoded before a job is accepted: 1 to 2 s */
#define DATASET_PATH_MAX_BYTES 1024            /* of a picture's path inside its data set */
#define METADATA_FILE_MAX_BYTES (512u << 20)
#define CAPTION_FILE_MAX_BYTES (1u << 20)
#define CAPTIONS_PER_PICTURE_MAX 64 /* each of at most PROMPT_MAX_BYTES */
#define BUCKET_STEP_PX 8            /* every side is a multiple of this */
#define DATASET_BUCKETS_MAX 1024

/* engine: one request (engine/request/request.c) */
#define PROMPT_MAX_BYTES 16384
#define PROMPT_AT_ONCE_BYTES 512 /* in AUTOMATIC1111's syntax; a longer one may take a while */
#define IMAGE_MIN_PX 64
#define IMAGE_MAX_PX 2048
#define IMAGE_MULTIPLE_PX 8
#define INIT_IMAGE_MAX_PX 4096 /* per side, for a picture that will be resized */
#define STEPS_MAX 1000
#define TRAIN_TIMESTEPS_MAX 10000 /* num_train_timesteps of a scheduler_config.json */
#define IMAGES_PER_REQUEST_MAX 16
#define GUIDANCE_SCALE_MAX 100.0
/* Image k uses seed + k, which must fit into a signed 64-bit integer of JSON. */
#define SEED_MAX (INT64_MAX - IMAGES_PER_REQUEST_MAX)
#define CLIP_SKIP_MAX 31  /* also below the text encoder's number of layers */
#define TEXT_CHUNKS_MAX 8 /* for a text that is not truncated */
/* AUTOMATIC1111's syntax (engine/prompts/attention.c): depth of brackets, and weights. */
#define PROMPT_NESTING_MAX 64
#define PROMPT_WEIGHT_MAX 1000.0
#define PROMPT_PARTS_MAX 8      /* joined by AND (engine/prompts/syntax.c) */
#define PROMPT_VARIANTS_MAX 128 /* texts of a prompt, by editing (engine/prompts/schedule.c) */
#define PROMPT_VARIANTS_BYTES_MAX (8 * PROMPT_MAX_BYTES) /* of such texts of a part, together */
#define TIMEOUT_MAX_S 86400.0
#define PRIORITY_MAX 3 /* either sign */
#define LORAS_PER_REQUEST_MAX 64
/* Images in one UNet call, on any device. The other images of a request wait for the next call. */
#define UNET_CALL_MAX_IMAGES 8
#define UNET_CALL_MAX_ROWS (2 * UNET_CALL_MAX_IMAGES)
/* Images of one latent size in progress at the same time. */
#define SAMPLER_MAX_IMAGES 16
/* Callers without requests whose accounts are kept (engine/drawing/turns.h). */
#define CALLERS_REMEMBERED_MAX 256

/* engine: cached encoded texts (engine/drawing/text_cache.c). A text of SD-1.5 takes 118 KB in
 * bf16. */
#define TEXT_CACHE_ENTRIES 512
#define TEXT_CACHE_BYTES ((size_t)64 << 20)

/* engine: adapters (engine/adapters/adapters.h) */
#define ADAPTER_NAME_MAX_BYTES 240 /* a part and ".safetensors" fit into a file name */
#define ADAPTER_NAME_PARTS_MAX 8   /* "folder/name" has two */
#define ADAPTER_ENTRIES_MAX 100000 /* files and folders examined below --lora-dir */
#define ADAPTER_FILE_MAX_BYTES ((uint64_t)4 << 30) /* of an uploaded file */
#define ADAPTER_UPLOAD_PATIENCE_S 5.0 /* of silence; then an upload may lose its name */
#define LORA_MEMORY_MAX_MB (1 << 24)  /* of --lora-memory */
#define ADAPTER_WEIGHT_MAX 100.0      /* either sign */

/* engine: checkpoints below --model-root (engine/loop/model_folder.c) */
#define MODEL_NAME_MAX_BYTES 255
#define MODEL_FOLDER_DEPTH 4 /* levels of folders searched */
#define MODEL_FILES_MAX 1000
#define MODEL_ENTRIES_MAX 100000 /* files and folders examined */

/* engine: textual inversion (engine/prompts/embeddings.c) */
#define EMBEDDINGS_MAX 1024      /* files in the folder */
#define EMBEDDING_VECTORS_MAX 75 /* all must fit into one chunk */
#define EMBEDDING_NAME_MAX_BYTES 128
#define EMBEDDING_FILE_MAX_BYTES (4u << 20)

/* queue (queue/queue.h) */
#define JOBS_WAITING_MAX 1000 /* queued or paused */
#define JOBS_ENDED_MAX 1000   /* beyond this, the oldest are deleted */
#define JOB_EVENTS_KEPT 1000  /* latest events of each job */
#define JOB_REQUEST_MAX_BYTES (1u << 20)
#define JOB_EVENT_MAX_BYTES (16u << 10) /* for one event from a job's runner */
#define JOB_EVENTS_PENDING_MAX 256      /* events not yet written to the queue */
#define FINE_TUNING_METADATA_MAX 16     /* texts of a job, and of the filter of a list */
#define JOB_KEY_MAX_BYTES 255           /* for an Idempotency-Key */
#define JOB_CALLER_MAX_BYTES 79         /* for struct caller (server/http/caller.h) */
/* A job fails if the daemon ends this many times in a row while it works on the job without new
 * progress. */
#define JOB_STRIKES_MAX 5

/* train: one job (train/config.c) */
#define TRAIN_CONFIG_MAX_BYTES (1 << 20)
#define TRAIN_CACHE_BYTES ((uint64_t)20 << 30) /* default */
#define TRAIN_BATCH_MAX 256
#define TRAIN_STEPS_MAX 100000000
#define TRAIN_TEXTS_MAX 64               /* target modules, prompts, parameter groups */
#define TRAIN_VALIDATION_STEPS_MAX 32768 /* total for all pictures of one validation */

/* server */
#define HTTP_BODY_MAX_BYTES (32u << 20)
#define HTTP_HEAD_MAX_BYTES (32u << 10)
#define HTTP_DISCARD_MAX_BYTES (64u << 10) /* of a refused body, to keep the connection open */
#define HTTP_CONNECTIONS 256               /* default of --max-connections */
#define HTTP_CONNECTIONS_LIMIT_MAX 4096
#define HTTP_HEADER_TIMEOUT_MS 10000
#define HTTP_IDLE_TIMEOUT_S 30
#define HTTP_BODY_TIMEOUT_MS 120000 /* from end of the headers to end of the body */
#define HTTP_UPLOAD_BYTES_PER_MS 64 /* extra time for an uploaded file */
#define HTTP_SEND_TIMEOUT_MS 300000 /* for the client to read the answer */
/* Request bodies in memory, over all connections. Bodies of up to HTTP_SMALL_BODY_BYTES have a
 * second allowance of their own (server/http/bodies.c). */
#define HTTP_BODIES_MAX_BYTES (256u << 20)
#define HTTP_SMALL_BODY_BYTES (1u << 20)
#define HTTP_SMALL_BODIES_MAX_BYTES (32u << 20)
/* When there is no room for another body, a large body that takes longer than this for
 * HTTP_BODY_STEP_BYTES is dropped. */
#define HTTP_BODY_STALL_MS 2000
#define HTTP_BODY_STEP_BYTES (64u << 10)
#define SDAPI_CANVASES_MAX_BYTES                                                                   \
    (256u << 20) /* of canvases waiting for their drawn part, all requests (server/sdapi) */
#define STYLES_FILE_MAX_BYTES (1u << 20) /* of --styles (server/sdapi/styles.c) */
#define STYLES_MAX 4096
#define STYLES_PER_REQUEST_MAX 64
#define STYLE_COLUMNS_MAX 16
#define HTTP_DRAIN_TIMEOUT_S 30            /* for clients to read answers while stopping */
#define HTTP_LAST_WORDS_MS 500             /* for clients to read, after --drain-timeout */
#define HTTP_CONNECTION_BYTES (128u << 10) /* memory for the heads of request and answer */
#define HTTP_LINGER_MS 5000                /* keep reading after a connection's last answer */
#define HTTP_LINGER_MAX_BYTES (64u << 20)  /* bytes read during HTTP_LINGER_MS */
#define HTTP_THREADS_MIN 2
#define HTTP_THREAD_CONNECTIONS 126 /* per thread (server/http/library/threads.c) */
#define HTTP_ENCODERS_MIN 2         /* encoder threads: processors / 4, at least this */
#define HTTP_ENCODERS_MAX 8
#define HTTP_LOADERS 2   /* threads that read adapters and compute weights from them */
#define HTTP_UNPACKERS 2 /* background threads that unpack archives */
#define HTTP_WALKERS 1   /* background threads that examine data sets */
#define HTTP_READERS 2   /* threads that parse large bodies and decode pictures */
#define HTTP_READ_AT_ONCE_BYTES (64u << 10) /* parsed without a reader (server/later/reading.h) */
#define MULTIPART_PARTS_MAX 64              /* in one form (server/http/multipart.c) */
#define MULTIPART_NAME_MAX_BYTES 128
#define REQUEST_ID_MAX_BYTES 64
#define KEYS_MAX 1000 /* API keys */
#define KEYS_FILE_MAX_BYTES (1u << 20)
#define KEY_NAME_MAX_BYTES 64
#define KEY_MAX_BYTES 512   /* of a key sent by a client */
#define KEY_FAILURES_MAX 10 /* wrong keys from one peer per minute */
#define JSON_MAX_DEPTH 16
#define JSON_MAX_VALUES (2 << 20)    /* as in a tokenizer.json; takes up to 300 MB */
#define JSON_REQUEST_MAX_VALUES 4096 /* in a request; only its texts are large */
#define QUEUE_MAX_REQUESTS 64        /* default of --max-queue */
#define QUEUE_LIMIT_MAX 65536
#define RETRY_AFTER_MAX_S 3600
#define DRAIN_TIMEOUT_MAX_S 86400
#define HTTP_HEARTBEAT_S 15 /* default of --heartbeat */
#define HTTP_HEARTBEAT_MAX_S 3600
#define JOB_WAIT_MAX_S 300               /* GET /jobs/{id}?wait= */
#define REPEATS_MAX 256                  /* answers stored for Idempotency-Keys */
#define REPEATS_BYTES ((size_t)64 << 20) /* for all stored answers */
#define REPEATS_S 600                    /* lifetime of a stored answer */
/* Pictures in memory that clients fetch by an answer's url (server/openai/picture_urls.h). */
#define PICTURE_URLS_MAX 1000
#define PICTURE_URLS_BYTES ((size_t)128 << 20)
#define PICTURE_URLS_AGE_S 3600 /* OpenAI's addresses live as long */
#define RESULTS_HOURS 24        /* default of --results-max-age */
#define RESULTS_MAX_HOURS 87600
#define RESULTS_BYTES ((uint64_t)10 << 30) /* default of --results-max-bytes */
#define JOBS_PAGE_MAX 100                  /* GET /jobs?limit= */

#endif
